"""Per-token losses as pure functions: importance ratios, PPO clip, truncated importance sampling, KL, value loss."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

Reduce = Literal["token", "turn", "turn_sum", "episode", "fixed"]
Level = Literal["token", "turn"]
Normalize = Literal["sum", "token", "word"]
KlEstimator = Literal["k1", "k2", "k3"]

LOG_RATIO_LIMIT = 20.0  # e^20 is far outside any clip; e^89 overflows float32, and 0·∞ in a backward pass is NaN


def ratio_of(log_ratio: Tensor) -> Tensor:
    """Importance ratio: exp of the log-ratio clamped to ±20, so that it and its gradient are finite."""
    return log_ratio.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp()


def log_ratio(logprobs: Tensor, old: Tensor, turn: Tensor, level: Level, normalize: Normalize, words: Tensor) -> Tensor:
    """Log of the importance ratio new/old of each token, or at turn level of its turn: [N] → [N].

    A turn's log-ratio is the sum over its tokens, or that sum per token (GSPO), or per word of its text.
    """
    by_token = logprobs - old
    if level == "token":
        return by_token
    _, index, size = torch.unique(turn, return_inverse=True, return_counts=True)
    total = torch.zeros(len(size), dtype=by_token.dtype, device=by_token.device).index_add(0, index, by_token)[index]
    if normalize == "token":
        return total / size[index]
    return total / words.clamp(min=1) if normalize == "word" else total


def clipped_policy_loss(
    ratio: Tensor, advantages: Tensor, low: float, high: float, dual: float | None = None
) -> Tensor:
    """PPO's clipped loss: −min(ratio·A, clip(ratio, 1 − low, 1 + high)·A).

    `dual` is the dual clip: for A < 0 the loss −A·ratio is bounded at −dual·A, however large the ratio.
    """
    loss = -torch.min(ratio * advantages, ratio.clamp(1 - low, 1 + high) * advantages)
    if dual is not None:
        loss = torch.where(advantages < 0, torch.min(loss, -dual * advantages), loss)
    return loss


def is_clipped(ratio: Tensor, advantages: Tensor, low: float, high: float) -> Tensor:
    """True where the clip removes a token's gradient; the mean is the clip fraction."""
    return torch.where(advantages > 0, ratio > 1 + high, (advantages < 0) & (ratio < 1 - low))


def truncated_importance_weight(old: Tensor, sampler: Tensor, cap: float) -> Tensor:
    """Truncated importance sampling (TIS): the learner/sampler probability ratio of each token, at most `cap`.

    Corrects for a sampler whose numerics or weights differ from the learner's.
    """
    return ratio_of(old - sampler).clamp(max=cap)


def kl(logprobs: Tensor, reference: Tensor, estimator: KlEstimator) -> Tensor:
    """KL divergence from the policy to the reference, estimated at the sampled tokens.

    k1: unbiased, may be negative.  k2: small variance, biased.  k3: unbiased and never negative.
    Beyond a ratio of e^20, k3 has no gradient: without the exponential, its linear term would point the wrong way.
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
    """Half the squared error, or the Huber loss with threshold `huber`. With `clip` (PPO's value clipping) the larger
    of the loss and that of the value clamped around the old one."""
    error = _error(values - returns, huber)
    if clip is not None:
        clipped = old + (values - old).clamp(-clip, clip)
        error = torch.max(error, _error(clipped - returns, huber))
    return error


def _error(difference: Tensor, huber: float | None) -> Tensor:
    if huber is None:
        return 0.5 * difference**2
    size = difference.abs()
    return torch.where(size <= huber, 0.5 * difference**2, huber * (size - 0.5 * huber))


def token_weights(turn: Tensor, episode: Tensor, reduce: Reduce, length: int | None = None) -> Tensor:
    """The weight of each sampled token, so that Σ weight·loss is the chosen mean: [N] → [N].

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
