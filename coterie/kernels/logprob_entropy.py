"""Log-prob of the chosen token and entropy from logits, forward and backward: the PyTorch reference.

With z = logits / temperature, p = softmax(z) and H its entropy: ∂ log p_chosen / ∂z = 1_chosen − p and
∂H / ∂z = −p·(log p + H). `logprob_entropy_triton` has the same functions as CUDA kernels.
"""

from __future__ import annotations

import torch
from torch import Tensor


def forward(logits: Tensor, tokens: Tensor, factor: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Log-probs, entropies and logsumexp of z = factor·logits: [N, V], [N], [N] → [N], [N], [N]."""
    z = _scaled(logits, factor)
    top = z.amax(dim=1)
    mass = (z - top[:, None]).exp_()
    total = mass.sum(dim=1)
    logsumexp = top + total.log()
    chosen = z.gather(1, tokens[:, None])[:, 0] - logsumexp
    return chosen, logsumexp - mass.mul_(z).sum(dim=1) / total, logsumexp


def backward(
    logits: Tensor,
    tokens: Tensor,
    factor: Tensor,
    logsumexp: Tensor,
    entropy: Tensor,
    grad_logprob: Tensor,
    grad_entropy: Tensor | None,
    dtype: torch.dtype,
) -> Tensor:
    """Gradient of the logits, from those of log-probs and entropies, as `dtype`: [N, V]."""
    logp = _scaled(logits, factor).sub_(logsumexp[:, None])
    if grad_entropy is None:
        grad = logp.exp_().mul_(-grad_logprob[:, None])
    else:
        grad = logp.exp().neg_()
        grad.mul_(logp.add_(entropy[:, None]).mul_(grad_entropy[:, None]).add_(grad_logprob[:, None]))
    grad.scatter_add_(1, tokens[:, None], grad_logprob[:, None])
    return grad.mul_(factor[:, None]).to(dtype)


def _scaled(logits: Tensor, factor: Tensor) -> Tensor:
    """A scaled copy in at least fp32."""
    return logits.to(torch.promote_types(logits.dtype, torch.float32), copy=True).mul_(factor[:, None])
