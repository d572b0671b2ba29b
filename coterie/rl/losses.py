"""Losses of one number per sampled token, and how they are added up: pure functions of tensors."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

Reduce = Literal["token", "turn", "turn_sum", "episode"]
KlEstimator = Literal["k1", "k2", "k3"]


def clipped_policy_loss(
    logprobs: Tensor, old: Tensor, advantages: Tensor, low: float, high: float, dual: float | None = None
) -> Tensor:
    """PPO's loss: no gain from moving a token's probability further than the clip allows.

    `dual` bounds the loss where a bad token has become much likelier: −A·ratio grows without end there.
    """
    ratio = (logprobs - old).exp()
    loss = -torch.min(ratio * advantages, ratio.clamp(1 - low, 1 + high) * advantages)
    if dual is not None:
        loss = torch.where(advantages < 0, torch.min(loss, -dual * advantages), loss)
    return loss


def kl(logprobs: Tensor, reference: Tensor, estimator: KlEstimator) -> Tensor:
    """How far the policy is from the reference, estimated at the sampled token.

    k1: unbiased, may be negative.  k2: small variance, biased.  k3: unbiased and never negative.
    """
    log_ratio = reference - logprobs
    if estimator == "k1":
        return -log_ratio
    if estimator == "k2":
        return 0.5 * log_ratio**2
    return log_ratio.exp() - 1 - log_ratio


def clipped_value_loss(values: Tensor, old: Tensor, returns: Tensor, clip: float | None) -> Tensor:
    """Half the squared error; with a clip, of the worse of the value and the value held near the old one."""
    error = (values - returns) ** 2
    if clip is not None:
        held = old + (values - old).clamp(-clip, clip)
        error = torch.max(error, (held - returns) ** 2)
    return 0.5 * error


def token_weights(turn: Tensor, episode: Tensor, reduce: Reduce) -> Tensor:
    """What each sampled token counts, so that Σ weight·loss is the declared mean: [N] → [N].

    token      mean over tokens                      every token one vote
    turn       mean over turns of their token means  every turn one vote
    turn_sum   mean over turns of their token sums   long turns weigh more
    episode    mean over episodes of token means     every episode one vote
    """
    if reduce == "token":
        return torch.full((len(turn),), 1.0 / max(len(turn), 1))
    _, index, size = torch.unique(episode if reduce == "episode" else turn, return_inverse=True, return_counts=True)
    each = torch.ones(len(size)) if reduce == "turn_sum" else 1.0 / size
    return (each / max(len(size), 1))[index]
