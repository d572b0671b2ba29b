"""Losses of one number per sampled token, and how they are added up: pure functions of tensors."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

Reduce = Literal["token", "turn", "turn_sum", "episode", "fixed"]
Level = Literal["token", "turn"]
Normalize = Literal["sum", "token", "word"]
KlEstimator = Literal["k1", "k2", "k3"]

LOG_RATIO_LIMIT = 20.0  # e^20 is far outside any clip; e^89 is infinite in float32, and 0·∞ in a backward pass is NaN


def ratio_of(log_ratio: Tensor) -> Tensor:
    """exp of a log-ratio clamped to ±20, so that it is finite, and so is its gradient."""
    return log_ratio.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp()


def log_ratio(logprobs: Tensor, old: Tensor, turn: Tensor, level: Level, normalize: Normalize, words: Tensor) -> Tensor:
    """How much likelier each token has become, or, at the level of turns, the turn it is in: [N] → [N].

    A turn's log-ratio is the sum of its tokens', or that sum per token (GSPO), or per word of its text.
    """
    moved = logprobs - old
    if level == "token":
        return moved
    _, index, size = torch.unique(turn, return_inverse=True, return_counts=True)
    total = torch.zeros(len(size), dtype=moved.dtype, device=moved.device).index_add(0, index, moved)[index]
    if normalize == "token":
        return total / size[index]
    return total / words.clamp(min=1) if normalize == "word" else total


def clipped_policy_loss(
    ratio: Tensor, advantages: Tensor, low: float, high: float, dual: float | None = None
) -> Tensor:
    """PPO's loss: no gain from moving a probability ratio further than the clip allows.

    `dual` bounds the loss where something bad has become much likelier: −A·ratio grows without end there.
    """
    loss = -torch.min(ratio * advantages, ratio.clamp(1 - low, 1 + high) * advantages)
    if dual is not None:
        loss = torch.where(advantages < 0, torch.min(loss, -dual * advantages), loss)
    return loss


def is_clipped(ratio: Tensor, advantages: Tensor, low: float, high: float) -> Tensor:
    """Whether the clip takes a token's gradient away: it is good and likelier, or bad and unlikelier, than allowed."""
    return torch.where(advantages > 0, ratio > 1 + high, (advantages < 0) & (ratio < 1 - low))


def truncated_importance_weight(old: Tensor, sampler: Tensor, most: float) -> Tensor:
    """Learner over sampler probability of each token, at most `most`: corrects for sampling with other numerics."""
    return ratio_of(old - sampler).clamp(max=most)


def kl(logprobs: Tensor, reference: Tensor, estimator: KlEstimator) -> Tensor:
    """How far the policy is from the reference, estimated at the sampled token.

    k1: unbiased, may be negative.  k2: small variance, biased.  k3: unbiased and never negative.
    A token e^20 times likelier by the reference has no gradient by k3; the linear term alone would push it away.
    """
    log_ratio = reference - logprobs
    if estimator == "k1":
        return -log_ratio
    if estimator == "k2":
        return 0.5 * log_ratio**2
    log_ratio = log_ratio.clamp(max=LOG_RATIO_LIMIT)
    return ratio_of(log_ratio) - 1 - log_ratio


def value_loss(
    values: Tensor, old: Tensor, returns: Tensor, clip: float | None = None, huber: float | None = None
) -> Tensor:
    """Half the squared error, or Huber's, which grows linearly beyond `huber`; with a clip, of the worse of the
    value and the value held near the old one."""
    error = _error(values - returns, huber)
    if clip is not None:
        held = old + (values - old).clamp(-clip, clip)
        error = torch.max(error, _error(held - returns, huber))
    return error


def _error(off: Tensor, huber: float | None) -> Tensor:
    if huber is None:
        return 0.5 * off**2
    size = off.abs()
    return torch.where(size <= huber, 0.5 * off**2, huber * (size - 0.5 * huber))


def token_weights(turn: Tensor, episode: Tensor, reduce: Reduce, length: int | None = None) -> Tensor:
    """What each sampled token counts, so that Σ weight·loss is the declared mean: [N] → [N].

    token      mean over tokens                      every token one vote
    turn       mean over turns of their token means  every turn one vote
    turn_sum   mean over turns of their token sums   long turns weigh more
    episode    mean over episodes of token means     every episode one vote
    fixed      mean over turns of token sums over `length`, the same for every turn
    """
    if reduce == "token":
        return torch.full((len(turn),), 1.0 / max(len(turn), 1))
    _, index, size = torch.unique(episode if reduce == "episode" else turn, return_inverse=True, return_counts=True)
    each = {"turn_sum": torch.ones(len(size)), "fixed": torch.full((len(size),), 1.0 / (length or 1))}
    return (each[reduce] if reduce in each else 1.0 / size)[index] / max(len(size), 1)
