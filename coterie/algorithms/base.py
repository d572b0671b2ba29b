"""What every algorithm shares. A new one overrides the hook that makes it different."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from coterie.algorithms.option_conflicts import without_effect
from coterie.limits import AboveOne, Count, NotNegative, Positive
from coterie.rl.losses import (
    KlEstimator,
    Level,
    Normalize,
    Reduce,
    clipped_policy_loss,
    is_clipped,
    kl,
    log_ratio,
    ratio_of,
    token_weights,
    truncated_importance_weight,
)
from coterie.types import Batch, Episode, Fork, Learner, Metrics, Scores, TokenMetrics, Turn

Chain = Literal["role", "team"]


@dataclass(frozen=True, kw_only=True)
class Algorithm:
    """Policy gradients with PPO's clip. The fields are the options in the config.

    `rotate` trains one policy at a time while the others stay as they are; with a long interval, so that each is
    done learning before the next begins, that is iterated best response. `rotate_turns` does the same with rounds.
    Critics of their own always learn; a value head on a policy's trunk rests with its policy.
    """

    clip: Positive = 0.2  # how far a probability ratio may fall below 1
    clip_high: Positive | None = None  # and rise above it; as `clip` where not given
    dual_clip: AboveOne | None = None  # bounds the loss of bad tokens that became likely
    level: Level = "token"  # what a ratio is of: a token, or a whole turn
    normalize: Normalize = "sum"  # how a turn's log-ratio is made of its tokens': their sum, or per token or word
    epochs: Count = 1  # passes over a step's turns
    minibatches: Count = 1  # optimiser steps in a pass
    reduce: Reduce | None = None  # how tokens are added up; as `level` where not given
    reduce_length: Count | None = None  # the fixed length of `reduce: fixed`
    kl: NotNegative = 0.0  # weight of the distance to the reference, the base without its adapter
    kl_estimator: KlEstimator = "k3"  # in the loss; in the reward it is k1
    kl_in: Literal["loss", "reward"] = "loss"
    entropy: NotNegative = 0.0  # weight of the bonus for undecided policies
    entropy_halves: Count | None = None  # steps in which that weight falls to a half, again and again
    stop_kl: Positive | None = None  # an optimiser step that finds its policy moved this far is the last of its step
    truncate: Positive | None = None  # weigh tokens by learner over sampler probability, up to this
    rotate: Count | None = None  # train one policy at a time, each for so many steps
    rotate_turns: Count | None = None  # train one round of turns at a time, each for so many steps

    needs_values: ClassVar[bool] = False  # whether turns need values; then it is a Ppo
    central_critic: ClassVar[bool] = False  # whether these are of the joint context
    # Options of how turns are played and learned from, which do not change what a turn is worth.
    not_in_advantage: ClassVar[frozenset[str]] = frozenset(
        {"clip", "clip_high", "dual_clip", "level", "normalize", "epochs", "minibatches", "reduce", "reduce_length"}
        | {"kl_estimator", "entropy", "entropy_halves", "stop_kl", "truncate", "rotate"}
    )

    def problems(self, config: Any) -> Iterator[tuple[str, str]]:
        """Options that contradict each other or have no effect, as (dotted key, what is wrong)."""
        yield from without_effect(self, config)

    def group_sizes(self, episodes: Sequence[Episode]) -> list[int]:
        """How many samples each group has that is compared; none where the algorithm has no groups."""
        return []

    @property
    def chain(self) -> Chain:
        """Along which turns what was earned flows back: a role's own, or the whole team's."""
        return "role"

    @property
    def single_update(self) -> bool:
        """Whether a policy takes one optimiser step a step; then what it thought before is what it thinks in it."""
        return self.epochs == self.minibatches == 1

    @property
    def needs_old_logprobs(self) -> bool:
        """Whether the learner's own log-probs have to be taken before the update: for ratios, or for a KL in the
        reward, which the sampler's rounding would fill with noise."""
        return not self.single_update or (self.kl > 0 and self.kl_in == "reward")

    @property
    def needs_entropy(self) -> bool:
        """Whether `turn.entropy` has to be taken before the update."""
        return False

    def needs_utility(self, step: int) -> bool:
        """Whether a mixer has to say by this step what each message is worth to the team; then it is a Vdn."""
        return False

    def trains_policies(self, step: int) -> bool:
        """Whether policies learn at this step; critics always do."""
        return True

    def at_step(self, step: int) -> Algorithm:
        """The algorithm as it is at this step, where an option changes in the course of a run."""
        if self.entropy_halves is None:
            return self
        return replace(self, entropy=self.entropy * 0.5 ** (step / self.entropy_halves))

    def assign_roles(self, step: int, roles: Mapping[str, str]) -> Mapping[str, str]:
        """Which policy plays which role at this step."""
        return roles

    def forks(self, episodes: list[Episode], learning: Collection[str]) -> list[Fork]:
        """More to learn from: episodes begun like those played. Asked again with what came of it, until none.

        `learning`: the policies that train at this step; what others say teaches nobody.
        """
        return []

    def compute_advantages(self, episodes: list[Episode], memory: dict[str, Any]) -> Metrics:
        """Write `turn.advantages` (and `turn.returns` where there is a critic) from what turns earned.

        `memory` is kept from step to step and in checkpoints.
        """
        raise NotImplementedError

    def loss(self, scores: Scores, batch: Batch) -> Tensor:
        """One number per sampled token."""
        loss = clipped_policy_loss(
            self.importance_ratio(scores, batch), batch.advantages, *self.clip_range, self.dual_clip
        )
        if self.truncate is not None:
            loss = loss * truncated_importance_weight(self.old_logprobs(scores, batch), batch.logprobs, self.truncate)
        if self.kl > 0 and self.kl_in == "loss":
            loss = loss + self.kl * kl(scores.logprobs, batch.ref_logprobs, self.kl_estimator)
        if self.entropy > 0:
            loss = loss - self.entropy * scores.entropy
        return loss

    @property
    def clip_range(self) -> tuple[float, float]:
        """How far a ratio may fall below 1, and rise above it."""
        return self.clip, self.clip if self.clip_high is None else self.clip_high

    def importance_ratio(self, scores: Scores, batch: Batch) -> Tensor:
        """New over old probability of each token, or of the turn it is in: [N]."""
        old = self.old_logprobs(scores, batch)
        return ratio_of(log_ratio(scores.logprobs, old, batch.turn, self.level, self.normalize, batch.words))

    def token_metrics(self, scores: Scores, batch: Batch) -> TokenMetrics:
        """What the metrics tell of an optimiser step. The KL is k3, which is unbiased and never negative."""
        ratio = self.importance_ratio(scores, batch)
        clipped = is_clipped(ratio, batch.advantages, *self.clip_range).to(ratio.dtype)
        far = kl(scores.logprobs, batch.ref_logprobs, "k3") if self.kl > 0 else torch.zeros_like(ratio)
        return TokenMetrics(ratio, clipped, far)

    def old_logprobs(self, scores: Scores, batch: Batch) -> Tensor:
        """What the learner thought before any update of the step. With one optimiser step that is what it thinks now:
        so the sampler's rounding, which changes with its batching, never reaches the weights."""
        return scores.logprobs.detach() if self.single_update else batch.old_logprobs

    def update(
        self, learners: Mapping[str, Learner], batches: Mapping[str, Batch], rng: random.Random, step: int
    ) -> Metrics:
        """Train every policy on its own batch."""
        policies = self.policies_to_update(learners, batches, step)
        trained = self.fit_policies(
            [learners[policy] for policy in policies], [batches[policy] for policy in policies], rng
        )
        return {
            f"{policy}/{name}": value
            for policy, metrics in zip(policies, trained, strict=True)
            for name, value in metrics.items()
        }

    def policies_to_update(self, learners: Mapping[str, Learner], batches: Mapping[str, Batch], step: int) -> list[str]:
        """The policies that train at this step and have something to learn from."""
        learning = self.trained_policies(learners, step)
        return [policy for policy in learning if policy in batches and bool(batches[policy].mask.any())]

    def trained_policies(self, learners: Mapping[str, Learner], step: int) -> list[str]:
        """The policies that train at this step: all that are not frozen, or the one whose turn it is."""
        learning = [policy for policy in learners if not learners[policy].frozen]
        return learning if self.rotate is None else [learning[step // self.rotate % len(learning)]]

    def fit_policies(self, learners: Sequence[Learner], batches: Sequence[Batch], rng: random.Random) -> list[Metrics]:
        """Optimiser steps of policies that do not wait for each other, each on its own batch: everyone's first, then
        everyone's second, and so on."""
        todo = {i: deque(self._minibatches(batch, rng)) for i, batch in enumerate(batches)}
        history: list[list[Metrics]] = [[] for _ in learners]
        while todo:
            minis = {i: parts.popleft() for i, parts in todo.items()}
            lessons = [
                (learners[i], mini, self.loss_weights(mini), self.loss, self.token_metrics) for i, mini in minis.items()
            ]
            for i, metrics in zip(minis, learners[0].fit_together(lessons), strict=True):
                history[i].append(metrics)
                if not todo[i] or (self.stop_kl is not None and metrics["kl_step"] > self.stop_kl):
                    del todo[i]
        unread = () if self.kl > 0 else ("kl",)  # of no reference
        return [{name: x for name, x in _over_fits(fits).items() if name not in unread} for fits in history]

    def _minibatches(self, batch: Batch, rng: random.Random) -> Iterator[Batch]:
        for _ in range(self.epochs):
            rows = list(range(batch.rows))
            if self.minibatches > 1:
                rng.shuffle(rows)
            for part in range(min(self.minibatches, batch.rows)):
                yield batch.take(rows[part :: self.minibatches])

    def loss_weights(self, batch: Batch) -> Tensor:
        """What each token counts, decided over the whole minibatch before it is cut: [T]."""
        weights = torch.zeros(len(batch))
        said = batch.mask
        how: Reduce = self.reduce or self.level
        weights[said] = token_weights(batch.turn[said], batch.episode[said], how, self.reduce_length)
        return weights

    def token_penalty(self, turn: Turn) -> Tensor:
        """What a turn's tokens lose for leaving the reference, where that is part of the reward: [L]."""
        if self.kl == 0 or self.kl_in == "loss" or turn.ref_logprobs is None:
            return torch.zeros(len(turn.response_ids))
        own = torch.tensor(turn.logprobs) if turn.old_logprobs is None else turn.old_logprobs
        return self.kl * kl(own, turn.ref_logprobs, "k1")


def _over_fits(fits: list[Metrics]) -> Metrics:
    """Means over a policy's optimiser steps, and the highest ratio; the first one's gap is that of sampler and
    learner."""
    mean = {key: sum(metrics[key] for metrics in fits) / len(fits) for key in fits[0]}
    highest = {key: max(metrics[key] for metrics in fits) for key in fits[0] if key == "ratio_max"}
    return mean | highest | {"gap": fits[0]["gap"], "gap_max": fits[0]["gap_max"], "fits": float(len(fits))}
