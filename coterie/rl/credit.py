"""From the rewards of turns to what each turn is credited with: pure functions."""

from __future__ import annotations

from collections.abc import Hashable, Sequence


def returns_to_go(rewards: Sequence[float], chain: Sequence[Hashable], gamma: float) -> list[float]:
    """Each reward and, discounted once per turn in between, the later ones of its chain.

    `chain` names what a turn belongs to: its role, or one name for the whole team.
    """
    returns = [0.0] * len(rewards)
    later: dict[Hashable, float] = {}
    for k in reversed(range(len(rewards))):
        returns[k] = later[chain[k]] = rewards[k] + gamma * later.get(chain[k], 0.0)
    return returns
