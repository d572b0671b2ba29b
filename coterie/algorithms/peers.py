"""Turns compared with their peers: those that share a task, a role, a prompt or whatever else is named."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from coterie.algorithms.base import Chain
from coterie.algorithms.group import Group
from coterie.limits import Positive
from coterie.rl.confidence import Gain, gain_factor
from coterie.rl.credit import returns_to_go
from coterie.rl.groups import Peer, Sample, group_key
from coterie.types import Episode, Turn

ALPHA = 0.25
EMPTY = "is empty; peers: [task, role] compares turns of one role on one task"


@dataclass(frozen=True, kw_only=True)
class Peers(Group):
    """Groups of single turns, and advantages weighed by how sure a turn was."""

    peers: tuple[Peer, ...] = ("task", "role")  # turns that share these are compared
    chain: Chain = "role"  # whose later turns count for a turn, too: its role's own, or the whole team's
    gain: Gain = "none"  # weigh advantages by how sure the message was, alone or beside the other roles
    gain_alpha: Positive = ALPHA

    forked: ClassVar[bool] = False  # whether siblings come from forks, so that one episode per task is enough

    def problems(self, config: Any) -> Iterator[tuple[str, str]]:
        yield from super().problems(config)
        yield from self.unfit(config, "algorithm")

    def unfit(self, config: Any, at: str) -> Iterator[tuple[str, str]]:
        """What is wrong with these settings, for all or for the role they are of."""
        if self.peers == ():
            yield f"{at}.peers", EMPTY
        compares = self.baseline in ("mean", "others") or self.scale == "deviation"
        once = compares and config.episodes_per_task < 2 and not self.forked
        if once and {"task", "prompt"} & {*self.peers}:
            yield "episodes_per_task", "is 1, so every group has one member and no advantage; 4 or 8 is usual"
        elif once and config.tasks_per_step < 2 and "role" in self.peers:
            yield "tasks_per_step", "is 1, and episodes_per_task too, so a role has nobody to be compared with"
        if "prompt" in self.peers and self.baseline == "ema":
            yield (
                f"{at}.baseline",
                "ema needs groups that come again, and prompts do not; take prompt out of peers",
            )
        if self.gain == "none" and self.gain_alpha != ALPHA:
            yield f"{at}.gain_alpha", "has no effect while gain is none"
        models = {policy.model for policy in config.policies.values()}
        if self.gain in ("confidence", "relative") and len(models) > 1 and not {"role", "policy"} & {*self.peers}:
            yield f"{at}.gain", "compares entropies, which needs one vocabulary in a group; add role or policy to peers"

    @property
    def needs_entropy(self) -> bool:
        return self.gain in ("confidence", "relative")

    def peers_of(self, role: str) -> tuple[Peer, ...]:
        """What the turns of a role share with those they are compared with."""
        return self.peers

    def samples(self, episodes: Sequence[Episode]) -> list[Sample]:
        return [
            Sample(group_key(episode, turn, self.peers_of(turn.role)), episode, (turn,), reward)
            for episode in episodes
            for turn, reward in zip(episode.turns, self.returns(episode), strict=True)
            if not turn.given and turn.dropped is None
        ]

    def returns(self, episode: Episode) -> list[float]:
        """What each turn earned and what was earned later, by its role or by all, less what leaving the reference cost
        the turn."""
        turns = episode.turns
        assert all(turn.earned is not None for turn in turns), "credit.assign comes before algorithm.credit"
        togo = self.to_go(turns, [turn.earned or 0.0 for turn in turns])
        return [gain - self.penalty(turn) for gain, turn in zip(togo, turns, strict=True)]

    def to_go(self, turns: Sequence[Turn], rewards: Sequence[float]) -> list[float]:
        """Each turn's reward and the discounted ones of later turns, of its role or of the team."""
        return returns_to_go(rewards, [turn.role if self.chain == "role" else "" for turn in turns], self.gamma_turn)

    def penalty(self, turn: Turn) -> float:
        """What leaving the reference cost all of a turn's tokens."""
        return float(self.token_penalty(turn).double().sum())

    def weighed(self, advantages: Sequence[Tensor], samples: Sequence[Sample], group: Tensor) -> Sequence[Tensor]:
        if self.gain == "none" or not samples:
            return advantages
        signs = torch.stack([own.mean().sign() for own in advantages])
        factors = gain_factor(signs, samples, group, self.gain, self.gain_alpha)
        return [own * factor for own, factor in zip(advantages, factors, strict=True)]
