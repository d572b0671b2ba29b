"""REINFORCE++: a token is good if what was earned after it, less the KL still to come, is more than usual."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from coterie.algorithms.grpo import Grpo
from coterie.limits import NotNegative
from coterie.rl.groups import Peer, Sample
from coterie.types import Episode


@dataclass(frozen=True, kw_only=True)
class ReinforcePp(Grpo):
    """REINFORCE by token: A_t = r − β·Σ_{i≥t} KL_i, the KL that the role is still to pay, whitened over all tokens.
    For many tasks and few episodes of each, one is enough; easy tasks then look good and hard ones bad.
    Costs the reference's log-probs of every turn, and no critic. (REINFORCE++, arXiv 2501.03262)"""

    peers: tuple[Peer, ...] = ("batch",)
    kl: NotNegative = 0.01
    kl_in: Literal["loss", "reward"] = "reward"

    def advantages(
        self, samples: Sequence[Sample], rewards: Tensor, group: Tensor, memory: dict[str, Any]
    ) -> Sequence[Tensor]:
        """Every token is compared: mean and deviation are of all tokens of the group, so that long turns weigh more."""
        returns = [self.token_returns(sample) for sample in samples]
        sizes = torch.tensor([len(own) for own in returns], dtype=torch.long)
        whose = torch.arange(len(samples)).repeat_interleave(sizes)
        tokens = torch.cat(returns) if returns else rewards
        found = self.compared([samples[i] for i in whose.tolist()], tokens, group[whose], memory)
        return found.split(sizes.tolist())

    def returns(self, episode: Episode) -> list[float]:
        """The KL is a reward like any other: that of later turns flows back, too."""
        assert all(turn.earned is not None for turn in episode.turns), "credit.assign comes before algorithm.credit"
        return self.to_go(episode.turns, [(turn.earned or 0.0) - self.penalty(turn) for turn in episode.turns])

    def token_returns(self, sample: Sample) -> Tensor:
        """r − β·Σ_{i≥t} KL_i: [L]. The sample's reward has lost the KL of the whole turn, also of the tokens before."""
        penalty = self.token_penalty(sample.turns[0]).double()
        return sample.reward + penalty.cumsum(0) - penalty
