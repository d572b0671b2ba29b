"""`Algorithm`: PPO's clipped loss, importance ratios, the KL penalty and the update loop that all algorithms share.

A new algorithm is a subclass in one file, and overrides the hook that makes it different: most often
`compute_advantages`. The rest of Coterie reads an algorithm's properties and never imports a concrete one.
"""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, Protocol

import torch
from torch import Tensor

from coterie.algorithms.option_conflicts import shared_option_problems
from coterie.limits import AboveOne, Count, NotNegative, Positive
from coterie.rl import losses
from coterie.rl.groups import GroupSample
from coterie.rl.mixers import MixerOptions
from coterie.types import Batch, Episode, Fork, Learner, Loss, Metrics, Scores, TokenMetrics, Turn, ValueEstimator

Chain = Literal["role", "team"]


class CriticFactory(Protocol):
    """Builds the critics of an algorithm; implemented by `training.critic_factory.CriticFactory`."""

    def critics(self, loss: Loss, weights: Callable[[Batch], Tensor], lr: float, fits: int) -> ValueEstimator | None:
        """Token critics as the config has them; None where values come from a head on the policy's trunk."""

    def mixer(self, options: MixerOptions) -> ValueEstimator:
        """Message utilities, a mixing network and a replay buffer (VDN, QMIX)."""


@dataclass(frozen=True, kw_only=True)
class Algorithm:
    """Policy gradient with PPO's clipped loss. The fields are the options in the config.

    `rotate` trains one policy at a time while the others stay fixed; with an interval long enough for each to converge,
    that is iterated best response. `rotate_turns` does the same with rounds. Critics always train; a value head on a
    policy's trunk trains with its policy.
    """

    clip: Positive = 0.2  # the importance ratio is clipped at 1 − clip
    clip_high: Positive | None = None  # the importance ratio is clipped at 1 + clip_high; null: as `clip`
    dual_clip: AboveOne | None = None  # bounds the loss of tokens with a negative advantage and a large ratio
    level: losses.Level = "token"  # one importance ratio per token, or per turn
    normalize: losses.Normalize = "sum"  # a turn's log-ratio: the sum over its tokens, or that per token or per word
    epochs: Count = 1  # passes over a step's turns
    minibatches: Count = 1  # optimizer steps per pass
    reduce: losses.Reduce | None = None  # how token losses are averaged; null: as `level`
    reduce_length: Count | None = None  # the fixed length of `reduce: fixed`
    kl: NotNegative = 0.0  # weight of the KL to the reference policy, the base without its adapter
    kl_estimator: losses.KlEstimator = "k3"  # estimator of the KL in the loss; in the reward it is k1
    kl_in: Literal["loss", "reward"] = "loss"  # add the KL to the loss, or subtract it from the reward
    entropy: NotNegative = 0.0  # weight of the entropy bonus
    entropy_halves: Count | None = None  # steps after which the entropy weight has halved; null: constant
    stop_kl: Positive | None = None  # early stop: skip the remaining minibatches once the policy has moved this far
    truncate: Positive | None = None  # truncated importance sampling: cap of the learner/sampler ratio
    rotate: Count | None = None  # train one policy at a time, each for so many steps
    rotate_turns: Count | None = None  # train one round of turns at a time, each for so many steps

    needs_values: ClassVar[bool] = False  # `turn.values`, from a value head or from critics
    central_critic: ClassVar[bool] = False  # critics must read the joint context; one is made if the config has none
    needs_mixer: ClassVar[bool] = False  # a mixer of message utilities, and so the config's text encoder
    # Options that advantages do not depend on, such as those of the loss: `coterie replay` rejects changes to them.
    not_in_advantage: ClassVar[frozenset[str]] = frozenset(
        {"clip", "clip_high", "dual_clip", "level", "normalize", "epochs", "minibatches", "reduce", "reduce_length"}
        | {"kl_estimator", "entropy", "entropy_halves", "stop_kl", "truncate", "rotate"}
    )

    def problems(self, config: Any) -> Iterator[tuple[str, str]]:
        """Options that contradict each other or have no effect, as (dotted key, message)."""
        yield from shared_option_problems(self, config)

    @property
    def chain(self) -> Chain:
        """The turns whose later rewards a turn's return includes: those of its own role, or of the whole team."""
        return "role"

    @property
    def single_update(self) -> bool:
        """True if a policy takes one optimizer step per step: then every importance ratio is 1."""
        return self.epochs == self.minibatches == 1

    @property
    def needs_old_logprobs(self) -> bool:
        """True if the learner's log-probs are computed before the update: for importance ratios, or for a KL in the
        reward, to which the sampler's rounding would add noise."""
        return not self.single_update or (self.kl > 0 and self.kl_in == "reward")

    @property
    def needs_entropy(self) -> bool:
        """True if `turn.entropy` is computed before the update."""
        return False

    def needs_utility(self, step: int) -> bool:
        """True if advantages are computed from `turn.utility`, a mixer's estimate, at this step."""
        return False

    @property
    def value_head_lr(self) -> float | None:
        """Learning rate of a value head on the policy's trunk; None: no value head."""
        return None

    def make_critic(self, factory: CriticFactory) -> ValueEstimator | None:
        """The critic that trains beside the policies, built by `factory`; None for algorithms without one."""
        return None

    def trains_policies(self, step: int) -> bool:
        """False in steps in which only critics train."""
        return True

    def at_step(self, step: int) -> Algorithm:
        """This algorithm with the options of this step, where one follows a schedule."""
        if self.entropy_halves is None:
            return self
        return replace(self, entropy=self.entropy * 0.5 ** (step / self.entropy_halves))

    def assign_roles(self, step: int, roles: Mapping[str, str]) -> Mapping[str, str]:
        """Which policy plays which role at this step."""
        return roles

    def forks(self, episodes: list[Episode], learning: Collection[str]) -> list[Fork]:
        """More episodes to train on, which begin like those played (tree sampling). Called again with the new episodes
        until it returns none. `learning`: the policies that train at this step."""
        return []

    def samples(self, episodes: Sequence[Episode]) -> list[GroupSample]:
        """The members of all groups, each with its group key; empty for algorithms without groups."""
        return []

    def group_sizes(self, episodes: Sequence[Episode]) -> list[int]:
        return list(Counter(sample.key for sample in self.samples(episodes)).values())

    def compute_advantages(self, episodes: list[Episode], memory: dict[str, Any]) -> Metrics:
        """Write `turn.advantages`, and `turn.returns` where there is a critic, from the turns' credit.

        `memory` lives from step to step and is part of checkpoints.
        """
        raise NotImplementedError

    def loss(self, scores: Scores, batch: Batch) -> Tensor:
        """The loss of each sampled token: clipped policy loss, truncated importance weight, KL and entropy terms."""
        ratio = self.importance_ratio(scores, batch)
        loss = losses.clipped_policy_loss(ratio, batch.advantages, *self.clip_range, self.dual_clip)
        if self.truncate is not None:
            old = self.old_logprobs(scores, batch)
            loss = loss * losses.truncated_importance_weight(old, batch.logprobs, self.truncate)
        if self.kl > 0 and self.kl_in == "loss":
            loss = loss + self.kl * losses.kl(scores.logprobs, batch.ref_logprobs, self.kl_estimator)
        if self.entropy > 0:
            loss = loss - self.entropy * scores.entropy
        return loss

    @property
    def clip_range(self) -> tuple[float, float]:
        """How far an importance ratio may fall below 1, and rise above it."""
        return self.clip, self.clip if self.clip_high is None else self.clip_high

    def importance_ratio(self, scores: Scores, batch: Batch) -> Tensor:
        """New over old probability of each token, or of its turn: [N]."""
        old = self.old_logprobs(scores, batch)
        log_ratio = losses.log_ratio(scores.logprobs, old, batch.turn, self.level, self.normalize, batch.words)
        return losses.ratio_of(log_ratio)

    def token_metrics(self, scores: Scores, batch: Batch) -> TokenMetrics:
        """Ratio, clip fraction and KL of an optimizer step. The KL is k3, which is unbiased and never negative."""
        ratio = self.importance_ratio(scores, batch)
        clipped = losses.is_clipped(ratio, batch.advantages, *self.clip_range).to(ratio.dtype)
        to_reference = losses.kl(scores.logprobs, batch.ref_logprobs, "k3") if self.kl > 0 else torch.zeros_like(ratio)
        return TokenMetrics(ratio, clipped, to_reference)

    def old_logprobs(self, scores: Scores, batch: Batch) -> Tensor:
        """The learner's log-probs before any update of the step. With a single optimizer step these are the current
        ones, so the sampler's rounding, which varies with its batching, never reaches the weights."""
        return scores.logprobs.detach() if self.single_update else batch.old_logprobs

    def update(
        self, learners: Mapping[str, Learner], batches: Mapping[str, Batch], rng: random.Random, step: int
    ) -> Metrics:
        """Train every policy on its own batch."""
        policies = self.policies_to_update(learners, batches, step)
        fitted = self.fit_policies([learners[name] for name in policies], [batches[name] for name in policies], rng)
        by_policy = zip(policies, fitted, strict=True)
        return {f"{policy}/{name}": value for policy, metrics in by_policy for name, value in metrics.items()}

    def policies_to_update(self, learners: Mapping[str, Learner], batches: Mapping[str, Batch], step: int) -> list[str]:
        """The policies that train at this step and have tokens to train on."""
        learning = self.trained_policies(learners, step)
        return [policy for policy in learning if policy in batches and bool(batches[policy].mask.any())]

    def trained_policies(self, learners: Mapping[str, Learner], step: int) -> list[str]:
        """The policies that train at this step: all that are not frozen, or with `rotate` one of them."""
        learning = [policy for policy in learners if not learners[policy].frozen]
        return learning if self.rotate is None else [learning[step // self.rotate % len(learning)]]

    def fit_policies(self, learners: Sequence[Learner], batches: Sequence[Batch], rng: random.Random) -> list[Metrics]:
        """Epochs and minibatches of independent policies, each on its own batch: the first optimizer step of every
        policy, then the second, and so on. Returns metrics per policy."""
        todo = {i: deque(self._minibatches(batch, rng)) for i, batch in enumerate(batches)}
        history: list[list[Metrics]] = [[] for _ in learners]
        while todo:
            minis = {i: parts.popleft() for i, parts in todo.items()}
            jobs = [(learners[i], m, self.gradient_weights(m), self.loss, self.token_metrics) for i, m in minis.items()]
            for i, metrics in zip(minis, learners[0].fit_together(jobs), strict=True):
                history[i].append(metrics)
                if not todo[i] or (self.stop_kl is not None and metrics["kl_step"] > self.stop_kl):
                    del todo[i]
        unused = () if self.kl > 0 else ("kl",)  # there are no reference log-probs
        return [{name: x for name, x in _fit_metrics(fits).items() if name not in unused} for fits in history]

    def _minibatches(self, batch: Batch, rng: random.Random) -> Iterator[Batch]:
        for _ in range(self.epochs):
            rows = list(range(batch.rows))
            if self.minibatches > 1:
                rng.shuffle(rows)
            for part in range(min(self.minibatches, batch.rows)):
                yield batch.take(rows[part :: self.minibatches])

    def loss_weights(self, batch: Batch) -> Tensor:
        """The weight of each token's loss, computed over the minibatch before it is cut into microbatches: [T]."""
        weights = torch.zeros(len(batch))
        mask, reduce = batch.mask, self.reduce or self.level
        weights[mask] = losses.token_weights(batch.turn[mask], batch.episode[mask], reduce, self.reduce_length)
        return weights

    def gradient_weights(self, batch: Batch) -> Tensor:
        """The loss weights, and zero where the loss and its gradient are zero: at tokens without an advantage, as in a
        group of equal rewards. The learner then runs such rows without a backward pass: [T]."""
        weights = self.loss_weights(batch)
        others = self.entropy > 0 or (self.kl > 0 and self.kl_in == "loss") or type(self).loss is not Algorithm.loss
        return weights if others else weights * (batch.advantages != 0)

    def token_kl_penalty(self, turn: Turn) -> Tensor:
        """The KL penalty of each token with `kl_in: reward`, else zeros: [L]."""
        if self.kl == 0 or self.kl_in == "loss" or turn.ref_logprobs is None:
            return torch.zeros(len(turn.response_ids))
        own = torch.tensor(turn.logprobs) if turn.old_logprobs is None else turn.old_logprobs
        return self.kl * losses.kl(own, turn.ref_logprobs, "k1")


def _fit_metrics(fits: list[Metrics]) -> Metrics:
    """Means over a policy's optimizer steps, and the highest ratio; the log-prob gap of sampler and learner is the
    first step's, before the weights moved."""
    mean = {key: sum(metrics[key] for metrics in fits) / len(fits) for key in fits[0]}
    highest = {key: max(metrics[key] for metrics in fits) for key in fits[0] if key == "ratio_max"}
    gap = {key: fits[0][key] for key in ("logprob_gap", "logprob_gap_max")}
    return mean | highest | gap | {"fits": float(len(fits))}
