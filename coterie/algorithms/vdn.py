"""VDN: learns the team's reward as a sum of utilities, one per role's message, and credits each role with its own.

The networks, their targets and the replay buffer are `learners.mixer.Mixer`; GRPO's estimator turns utilities into
advantages.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from coterie.algorithms.base import CriticFactory
from coterie.algorithms.group_estimator import Groups
from coterie.algorithms.grpo import Grpo
from coterie.limits import Count, CountFromZero, Positive, Share
from coterie.rl.advantages import is_constant
from coterie.rl.mixers import Additive
from coterie.types import Episode, ValueEstimator

MIXER_OPTIONS = frozenset({"warmup", "target", "width", "value_lr", "value_fits", "draw", "buffer", "polyak"})


@dataclass(frozen=True, kw_only=True)
class Vdn(Grpo):
    """Learns the team's reward as a sum of utilities, one per role's message, and credits each role with its own.
    Where roles contribute separately and a shared reward hides who did what; groups of equal rewards are skipped.
    Costs a forward over messages and joint prompts, small networks and a buffer. (VDN: arXiv 1706.05296)"""

    warmup: CountFromZero = 10  # steps in which roles still earn the team's reward, while the utilities train
    target: Literal["td", "return"] = "td"  # reward plus the next round's target value, or the team's return
    width: Count = 64  # width of the networks' hidden layers
    value_lr: Positive = 1e-3  # learning rate of the networks
    value_fits: Count = 32  # optimizer steps of the networks per step
    draw: Count = 64  # joint turns sampled from the replay buffer per optimizer step
    buffer: Count = 2048  # capacity of the replay buffer, in joint turns
    polyak: Share = 0.05  # how far the target networks follow at every fit

    needs_mixer: ClassVar[bool] = True
    not_in_advantage: ClassVar[frozenset[str]] = Grpo.not_in_advantage | MIXER_OPTIONS

    def problems(self, config: Any) -> Iterator[tuple[str, str]]:
        yield from super().problems(config)
        yield from mixer_problems(self, config)

    def needs_utility(self, step: int) -> bool:
        return step >= self.warmup

    def make_critic(self, factory: CriticFactory) -> ValueEstimator:
        return factory.mixer(self)

    def mixing(self, roles: int, features: int) -> nn.Module:
        """How utilities become the team's value: their sum."""
        return Additive()

    def turn_returns(self, episode: Episode) -> list[float]:
        """After the warm-up, a turn's return is its utility."""
        if any(turn.utility is None for turn in episode.turns):
            return super().turn_returns(episode)
        return [(turn.utility or 0.0) - self.turn_kl_penalty(turn) for turn in episode.turns]

    def sample_advantages(self, groups: Groups, memory: dict[str, Any]) -> Sequence[Tensor]:
        return super().sample_advantages(without_noise(groups), memory)


def mixer_problems(algorithm: Any, config: Any) -> Iterator[tuple[str, str]]:
    """Options of VDN and QMIX that contradict each other or have no effect."""
    name = type(algorithm).__name__
    if algorithm.warmup >= config.steps:
        message = f"{algorithm.warmup} steps in a run of steps={config.steps}: utilities would never be used"
        yield "algorithm.warmup", message
    if algorithm.target == "return" and algorithm.polyak != type(algorithm).polyak:
        yield "algorithm.polyak", "has no effect with target: return, which uses no target network"
    if algorithm.chain != "role":
        yield "algorithm.chain", "has no effect after the warm-up: a utility belongs to one role"
    if len(config.roles) < 2:
        yield "roles", f"{name} divides a reward between roles, and there is only one; use grpo"
    if config.credit.name != "team":
        yield "credit", f"has no effect after the warm-up: {name} learns what each role contributed"


def without_noise(groups: Groups) -> Groups:
    """Subtract the utilities from the rewards of groups in which the team earned the same in every episode.

    In such a group utilities differ mostly by estimation error, and dividing by their deviation would scale that error
    to the size of a real advantage.
    """
    team = torch.tensor([_team_return(sample.episode) for sample in groups.samples], dtype=torch.float64)
    utilities = torch.tensor([sample.turns[0].utility or 0.0 for sample in groups.samples], dtype=torch.float64)
    constant = is_constant(team, groups.index)
    return replace(groups, rewards=torch.where(constant, groups.rewards - utilities, groups.rewards))


def _team_return(episode: Episode) -> float:
    return episode.reward + sum(turn.reward or 0.0 for turn in episode.turns)
