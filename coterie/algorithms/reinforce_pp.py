"""REINFORCE++: token-level returns with the KL penalty in the reward, whitened over the whole batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from coterie.algorithms.group_estimator import Groups, group_advantages
from coterie.algorithms.grpo import Grpo
from coterie.limits import NotNegative
from coterie.rl.groups import GroupBy, GroupSample
from coterie.types import Episode


@dataclass(frozen=True, kw_only=True)
class ReinforcePp(Grpo):
    """REINFORCE by token: A_t = r − β·Σ_{i≥t} KL_i, the reward minus the KL still to come, whitened over all tokens.
    For many tasks with few episodes each, even one; easy tasks then get positive and hard ones negative advantages.
    Costs the reference's log-probs of every turn, and no critic. (REINFORCE++, arXiv 2501.03262)"""

    group_by: tuple[GroupBy, ...] = ("batch",)
    kl: NotNegative = 0.01
    kl_in: Literal["loss", "reward"] = "reward"

    def sample_advantages(self, groups: Groups, memory: dict[str, Any]) -> Sequence[Tensor]:
        """One advantage per token: baseline and deviation are taken over all tokens of the group."""
        returns = [self.token_returns(sample) for sample in groups.samples]
        sizes = torch.tensor([len(own) for own in returns], dtype=torch.long)
        sample = torch.arange(len(returns)).repeat_interleave(sizes)  # of each token
        rewards = torch.cat(returns) if returns else groups.rewards
        by_token = Groups([groups.samples[i] for i in sample.tolist()], groups.index[sample], rewards)
        advantages = group_advantages(by_token, self.baseline, self.scale, self.decay, memory)
        return advantages.split(sizes.tolist())

    def turn_returns(self, episode: Episode) -> list[float]:
        """KL penalties are rewards like any other: those of later turns are part of a turn's return."""
        turns = episode.turns
        assert all(turn.credit is not None for turn in turns), "credit.assign comes before compute_advantages"
        return self.returns_to_go(turns, [(turn.credit or 0.0) - self.turn_kl_penalty(turn) for turn in turns])

    def token_returns(self, sample: GroupSample) -> Tensor:
        """r − β·Σ_{i≥t} KL_i: [L]. The sample's reward is less the whole turn's KL, so earlier tokens' KL is added."""
        penalty = self.token_kl_penalty(sample.turns[0]).double()
        return sample.reward + penalty.cumsum(0) - penalty
