"""VDN: a learned sum tells whose message earned the team's reward."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from coterie.algorithms.grpo import Grpo
from coterie.limits import Count, CountFromZero, Positive, Share
from coterie.rl.advantages import is_constant
from coterie.rl.groups import Sample
from coterie.rl.mixers import Additive
from coterie.types import Episode


@dataclass(frozen=True, kw_only=True)
class Vdn(Grpo):
    """Learns the team's reward as a sum of utilities, one per role's message, and credits each role with its own.
    Where roles add to the result apart and a shared reward hides who did it; equal groups judge nobody.
    Costs a forward over messages and joint prompts, small networks and a buffer. (VDN: arXiv 1706.05296)"""

    warmup: CountFromZero = 10  # steps in which roles still earn the team's reward, while the utilities learn
    target: Literal["td", "return"] = "td"  # what to learn: reward and the next round's value, or the team's return
    width: Count = 64  # of the networks' hidden layers
    value_lr: Positive = 1e-3
    value_fits: Count = 32  # optimiser steps of the networks a step
    draw: Count = 64  # joint turns in each
    buffer: Count = 2048  # joint turns that are kept to learn from
    polyak: Share = 0.05  # how far the targets follow the networks at every fit

    not_in_advantage: ClassVar[frozenset[str]] = Grpo.not_in_advantage | {
        "warmup",
        "target",
        "width",
        "value_lr",
        "value_fits",
    }
    not_in_advantage |= {"draw", "buffer", "polyak"}

    def problems(self, config: Any) -> Iterator[tuple[str, str]]:
        yield from super().problems(config)
        if self.warmup >= config.steps:
            yield "algorithm.warmup", f"{self.warmup} steps in a run of steps={config.steps}: no utility is ever used"
        if self.target == "return" and self.polyak != 0.05:
            yield "algorithm.polyak", "has no effect with target: return, which asks no target network"
        if self.chain != "role":
            yield "algorithm.chain", "has no effect after the warm-up: a utility is a role's own"
        if len(config.roles) < 2:
            yield "roles", f"{type(self).__name__} shares a reward between roles, and there is only one; take grpo"
        if config.credit.name != "team":
            yield "credit", f"has no effect after the warm-up: {type(self).__name__} learns what each role earned"

    def needs_utility(self, step: int) -> bool:
        return step >= self.warmup

    def mixing(self, roles: int, features: int) -> nn.Module:
        """How utilities become the team's value."""
        return Additive()

    def returns(self, episode: Episode) -> list[float]:
        """A utility foresees what comes after its turn: it is a return already. In the warm-up, as GRPO's."""
        if any(turn.utility is None for turn in episode.turns):
            return super().returns(episode)
        return [(turn.utility or 0.0) - self.penalty(turn) for turn in episode.turns]

    def compared(self, samples: Sequence[Sample], rewards: Tensor, group: Tensor, memory: dict[str, Any]) -> Tensor:
        """Where the team earned the same in all of a group, utilities do not count: what they tell apart there is
        mostly their error, which a division by its own deviation would make as loud as any lesson."""
        team = torch.tensor([_team_return(sample.episode) for sample in samples], dtype=torch.float64)
        utilities = torch.tensor([sample.turns[0].utility or 0.0 for sample in samples], dtype=torch.float64)
        counted = torch.where(is_constant(team, group), rewards - utilities, rewards)
        return super().compared(samples, counted, group, memory)


def _team_return(episode: Episode) -> float:
    return episode.reward + sum(turn.reward or 0.0 for turn in episode.turns)
