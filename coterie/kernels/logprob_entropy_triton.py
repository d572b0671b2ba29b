"""`logprob_entropy` as Triton kernels: one online-softmax pass over the logits forward, one pass backward."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 4096  # logits per load


@triton.jit
def _forward(logits, tokens, factor, chosen, entropy, logsumexp, vocabulary: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    start = logits + row.to(tl.int64) * vocabulary
    scale = tl.load(factor + row)
    top = -float("inf")
    total = 0.0
    weighted = 0.0  # Σ z·exp(z − top)
    for first in range(0, vocabulary, BLOCK):
        at = first + tl.arange(0, BLOCK)
        real = at < vocabulary
        z = tl.load(start + at, mask=real, other=0.0).to(tl.float32) * scale
        new_top = tl.maximum(top, tl.max(tl.where(real, z, -float("inf")), axis=0))
        mass = tl.where(real, tl.exp(z - new_top), 0.0)
        decay = tl.exp(top - new_top)
        total = total * decay + tl.sum(mass, axis=0)
        weighted = weighted * decay + tl.sum(mass * z, axis=0)
        top = new_top
    lse = top + tl.log(total)
    z_chosen = tl.load(start + tl.load(tokens + row)).to(tl.float32) * scale
    tl.store(chosen + row, z_chosen - lse)
    tl.store(entropy + row, lse - weighted / total)
    tl.store(logsumexp + row, lse)


@triton.jit
def _backward(
    logits, tokens, factor, logsumexp, entropy, grad_logprob, grad_entropy, out, vocabulary, BLOCK: tl.constexpr
):
    row = tl.program_id(0)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    real = at < vocabulary
    here = row.to(tl.int64) * vocabulary + at
    scale, first, second = tl.load(factor + row), tl.load(grad_logprob + row), tl.load(grad_entropy + row)
    logp = tl.load(logits + here, mask=real, other=0.0).to(tl.float32) * scale - tl.load(logsumexp + row)
    grad = -tl.exp(logp) * (first + second * (logp + tl.load(entropy + row)))
    grad = tl.where(at == tl.load(tokens + row), grad + first, grad) * scale
    tl.store(out + here, grad.to(out.dtype.element_ty), mask=real)


def forward(logits: Tensor, tokens: Tensor, factor: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    rows, vocabulary = logits.shape
    chosen, entropy, logsumexp = torch.empty(3, rows, device=logits.device)
    _forward[(rows,)](logits, tokens, factor, chosen, entropy, logsumexp, vocabulary, BLOCK, num_warps=8)
    return chosen, entropy, logsumexp


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
    rows, vocabulary = logits.shape
    out = torch.empty_like(logits, dtype=dtype)
    grad_entropy = torch.zeros_like(grad_logprob) if grad_entropy is None else grad_entropy
    _backward[(rows, triton.cdiv(vocabulary, BLOCK))](
        logits, tokens, factor, logsumexp, entropy, grad_logprob.contiguous(), grad_entropy.contiguous(), out,
        vocabulary, BLOCK, num_warps=8,
    )  # fmt: skip
    return out
