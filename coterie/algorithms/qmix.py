"""QMIX: learns the team's reward as a monotonic mixture of utilities, one per role's message, weighted by the state.

The networks, their targets and the replay buffer are `learners.mixer.Mixer`, the mixing network is
`rl.mixers.Monotonic`; GRPO's estimator turns utilities into advantages.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from torch import Tensor, nn

from coterie.algorithms.base import CriticFactory
from coterie.algorithms.group_estimator import Groups
from coterie.algorithms.grpo import Grpo
from coterie.algorithms.vdn import MIXER_OPTIONS, mixer_problems, without_noise
from coterie.limits import Count, CountFromZero, Positive, Share
from coterie.rl.mixers import Monotonic
from coterie.types import Episode, ValueEstimator


@dataclass(frozen=True, kw_only=True)
class Qmix(Grpo):
    """VDN with a monotonic network in place of the sum: how much a role's utility counts depends on the state.
    For teams whose roles matter more in some situations than in others; where a plain sum fits, VDN learns faster.
    Costs what VDN costs, and hypernetworks that compute the mixing weights from the state. (QMIX: arXiv 1803.11485)"""

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
        """How utilities become the team's value: monotonic in each, with weights computed from the state."""
        return Monotonic(roles, features, self.width)

    def turn_returns(self, episode: Episode) -> list[float]:
        """After the warm-up, a turn's return is its utility."""
        if any(turn.utility is None for turn in episode.turns):
            return super().turn_returns(episode)
        return [(turn.utility or 0.0) - self.turn_kl_penalty(turn) for turn in episode.turns]

    def sample_advantages(self, groups: Groups, memory: dict[str, Any]) -> Sequence[Tensor]:
        return super().sample_advantages(without_noise(groups), memory)
