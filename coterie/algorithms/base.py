"""What every algorithm shares. A new one overrides the hook that makes it different."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from coterie.rl.losses import KlEstimator, Reduce, clipped_policy_loss, kl, token_weights
from coterie.types import Batch, Episode, Learner, Metrics, Scores, Turn

Positive = Annotated[float, Field(gt=0)]
NotNegative = Annotated[float, Field(ge=0)]
Count = Annotated[int, Field(ge=1)]


@dataclass(frozen=True, kw_only=True)
class Algorithm:
    """Policy gradients with PPO's clip. The fields are the options in the config."""

    clip: Positive = 0.2  # how far a token's probability ratio may fall below 1
    clip_high: Positive | None = None  # and rise above it; as `clip` where not given
    dual_clip: Annotated[float, Field(gt=1)] | None = None  # bounds the loss of bad tokens that became likely
    epochs: Count = 1  # passes over a step's turns
    minibatches: Count = 1  # optimiser steps in a pass
    reduce: Reduce = "token"
    kl: NotNegative = 0.0  # weight of the distance to the reference, the base without its adapter
    kl_estimator: KlEstimator = "k3"  # in the loss; in the reward it is k1
    kl_in: Literal["loss", "reward"] = "loss"
    entropy: NotNegative = 0.0

    value_head: ClassVar[bool] = False  # whether a policy needs one on its trunk

    def problems(self, config: Any) -> Iterator[tuple[str, str]]:
        """Options that contradict each other or have no effect, as (dotted key, what is wrong)."""
        if self.kl == 0 and (self.kl_estimator, self.kl_in) != ("k3", "loss"):
            key = "kl_in" if self.kl_in != "loss" else "kl_estimator"
            yield f"algorithm.{key}", "has no effect while algorithm.kl is 0"
        if self.kl > 0 and self.kl_in == "reward" and self.kl_estimator != "k3":
            yield "algorithm.kl_estimator", "has no effect with kl_in: reward, which always takes k1"
        if self.epochs == self.minibatches == 1 and self.dual_clip is not None:
            yield "algorithm.dual_clip", "has no effect with one epoch and one minibatch: every ratio is 1"
        if self.epochs == self.minibatches == 1 and (self.clip_high is not None or self.clip != 0.2):
            key = "clip_high" if self.clip_high is not None else "clip"
            yield f"algorithm.{key}", "has no effect with one epoch and one minibatch: every ratio is 1"

    def seats(self, step: int, roles: Mapping[str, str]) -> Mapping[str, str]:
        """Which policy plays which role at this step."""
        return roles

    def credit(self, episodes: list[Episode]) -> Metrics:
        """Write `turn.advantages` (and `turn.returns` where there is a critic)."""
        raise NotImplementedError

    def loss(self, scores: Scores, batch: Batch) -> Tensor:
        """One number per sampled token."""
        high = self.clip if self.clip_high is None else self.clip_high
        loss = clipped_policy_loss(scores.logprobs, batch.logprobs, batch.advantages, self.clip, high, self.dual_clip)
        if self.kl > 0 and self.kl_in == "loss":
            loss = loss + self.kl * kl(scores.logprobs, batch.ref_logprobs, self.kl_estimator)
        if self.entropy > 0:
            loss = loss - self.entropy * scores.entropy
        return loss

    def update(self, learners: Mapping[str, Learner], batches: Mapping[str, Batch], rng: random.Random) -> Metrics:
        """Train every policy on its own batch, one after the other."""
        metrics: Metrics = {}
        for policy, batch in batches.items():
            if not learners[policy].frozen and bool(batch.mask.any()):
                metrics |= {f"{policy}/{k}": v for k, v in self.train(learners[policy], batch, rng).items()}
        return metrics

    def train(self, learner: Learner, batch: Batch, rng: random.Random) -> Metrics:
        """A policy's optimiser steps on one batch; the first one's gap is that of sampler and learner."""
        history: list[Metrics] = []
        for _ in range(self.epochs):
            rows = list(range(batch.rows))
            if self.minibatches > 1:
                rng.shuffle(rows)
            for part in range(min(self.minibatches, batch.rows)):
                mini = batch.take(rows[part :: self.minibatches])
                history.append(learner.fit(mini, self.weights(mini), self.loss))
        mean = {key: sum(m[key] for m in history) / len(history) for key in history[0]}
        return mean | {"gap": history[0]["gap"], "gap_max": history[0]["gap_max"]}

    def weights(self, batch: Batch) -> Tensor:
        """What each token counts, decided over the whole minibatch before it is cut: [T]."""
        weights = torch.zeros(len(batch))
        weights[batch.mask] = token_weights(batch.turn[batch.mask], batch.episode[batch.mask], self.reduce)
        return weights

    def token_penalty(self, turn: Turn) -> Tensor:
        """What a turn's tokens lose for leaving the reference, where that is part of the reward: [L]."""
        if self.kl == 0 or self.kl_in == "loss" or turn.ref_logprobs is None:
            return torch.zeros(len(turn.response_ids))
        return self.kl * kl(torch.tensor(turn.logprobs), turn.ref_logprobs, "k1")
