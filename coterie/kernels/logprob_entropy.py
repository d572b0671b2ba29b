"""What a chosen token and the entropy beside it are by the logits, and what the logits are to be blamed for.

With z the logits over the temperature, p their softmax and H its entropy:
∂ log p_chosen = 1_chosen − p and ∂H = −p·(log p + H).
"""

from __future__ import annotations

import torch
from torch import Tensor


def forward(logits: Tensor, tokens: Tensor, factor: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Log-probs, entropies and log-sums of z = factor · logits: [N, V], [N], [N] → [N], [N], [N]."""
    z = _heated(logits, factor)
    top = z.amax(dim=1)
    mass = (z - top[:, None]).exp_()
    total = mass.sum(dim=1)
    log_sum = top + total.log()
    chosen = z.gather(1, tokens[:, None])[:, 0] - log_sum
    return chosen, log_sum - mass.mul_(z).sum(dim=1) / total, log_sum


def backward(
    logits: Tensor,
    tokens: Tensor,
    factor: Tensor,
    log_sum: Tensor,
    entropy: Tensor,
    by_logprob: Tensor,
    by_entropy: Tensor | None,
    dtype: torch.dtype,
) -> Tensor:
    """The gradient by the logits, out of those by log-probs and entropies, as `dtype`: [N, V]."""
    logp = _heated(logits, factor).sub_(log_sum[:, None])
    if by_entropy is None:
        found = logp.exp_().mul_(-by_logprob[:, None])
    else:
        found = logp.exp().neg_()
        found.mul_(logp.add_(entropy[:, None]).mul_(by_entropy[:, None]).add_(by_logprob[:, None]))
    found.scatter_add_(1, tokens[:, None], by_logprob[:, None])
    return found.mul_(factor[:, None]).to(dtype)


def _heated(logits: Tensor, factor: Tensor) -> Tensor:
    """In full precision."""
    return logits.to(torch.promote_types(logits.dtype, torch.float32), copy=True).mul_(factor[:, None])
