"""Token-level VDN: the team's value is the sum of its roles' token values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from coterie.algorithms.base import Chain
from coterie.algorithms.ppo import Ppo, TurnEstimate, chains
from coterie.types import Episode, Turn


@dataclass(frozen=True, kw_only=True)
class VdnToken(Ppo):
    """IPPO whose values add up: the roles' own values sum to the team's, which is fitted to the team's return.
    Where the team's reward is roughly a sum of what roles contribute; for whole messages see vdn and qmix.
    Costs what PPO costs; for values that differ give every role a critic or a head of its own. (arXiv 1706.05296)"""

    chain: ClassVar[Chain] = "role"

    def problems(self, config: Any) -> Iterator[tuple[str, str]]:
        yield from super().problems(config)
        if self.level == "turn":
            yield "algorithm.level", "is token for vdn_token; vdn and qmix learn values of whole messages"

    def estimates(self, episodes: Sequence[Episode]) -> Iterator[TurnEstimate]:
        """GAE of each role on the sum of its own and the others' values: its own value is fitted to a share of the
        return, so an advantage over it alone would include what the others contributed."""
        values = [_mean_values(episode.turns) for episode in episodes]
        roles = sorted({role for by_role in values for role in by_role})  # a fixed order of summation
        total = {role: sum(by_role[role] for by_role in values if role in by_role) for role in roles}
        for episode, own in zip(episodes, values, strict=True):
            others = max(len(episodes) - 1, 1)
            elsewhere = {role: (total[role] - own.get(role, 0.0)) / others for role in roles}
            for turns in chains(episode, "role"):
                yield from self.chain_gae(turns, [_value_of_others(turn, episode, elsewhere) for turn in turns])


def _mean_values(turns: Sequence[Turn]) -> dict[str, float]:
    """Each role's mean value over the tokens of these turns."""
    values: dict[str, list[Tensor]] = {}
    for turn in turns:
        if turn.values is not None and len(turn.values):
            values.setdefault(turn.role, []).append(turn.values)
    return {role: float(torch.cat(own).double().mean()) for role, own in values.items()}


def _value_of_others(turn: Turn, episode: Episode, elsewhere: Mapping[str, float]) -> float:
    """The sum of the other roles' values, independent of this turn: of roles seen before it, their values in this
    episode; of roles that speak only after it, their mean over the step's other episodes."""
    known = {**elsewhere, **_mean_values([episode.turns[i] for i in turn.seen])}
    return sum(value for role, value in known.items() if role != turn.role)
