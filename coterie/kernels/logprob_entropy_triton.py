"""`softmax` on CUDA: logits are read where they lie, once for each of the two."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 4096  # logits


@triton.jit
def _forward(logits, tokens, factor, chosen, entropy, log_sum, vocabulary: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    start = logits + row.to(tl.int64) * vocabulary
    heat = tl.load(factor + row)
    top = -float("inf")
    total = 0.0
    weighed = 0.0  # Σ z·exp(z − top)
    for first in range(0, vocabulary, BLOCK):
        at = first + tl.arange(0, BLOCK)
        real = at < vocabulary
        z = tl.load(start + at, mask=real, other=0.0).to(tl.float32) * heat
        higher = tl.maximum(top, tl.max(tl.where(real, z, -float("inf")), axis=0))
        mass = tl.where(real, tl.exp(z - higher), 0.0)
        shrink = tl.exp(top - higher)
        total = total * shrink + tl.sum(mass, axis=0)
        weighed = weighed * shrink + tl.sum(mass * z, axis=0)
        top = higher
    sum_of_all = top + tl.log(total)
    said = tl.load(start + tl.load(tokens + row)).to(tl.float32) * heat
    tl.store(chosen + row, said - sum_of_all)
    tl.store(entropy + row, sum_of_all - weighed / total)
    tl.store(log_sum + row, sum_of_all)


@triton.jit
def _backward(logits, tokens, factor, log_sum, entropy, by_logprob, by_entropy, out, vocabulary, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    real = at < vocabulary
    here = row.to(tl.int64) * vocabulary + at
    heat, first, second = tl.load(factor + row), tl.load(by_logprob + row), tl.load(by_entropy + row)
    logp = tl.load(logits + here, mask=real, other=0.0).to(tl.float32) * heat - tl.load(log_sum + row)
    found = -tl.exp(logp) * (first + second * (logp + tl.load(entropy + row)))
    found = tl.where(at == tl.load(tokens + row), found + first, found) * heat
    tl.store(out + here, found.to(out.dtype.element_ty), mask=real)


def forward(logits: Tensor, tokens: Tensor, factor: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    rows, vocabulary = logits.shape
    chosen, entropy, log_sum = torch.empty(3, rows, device=logits.device)
    _forward[(rows,)](logits, tokens, factor, chosen, entropy, log_sum, vocabulary, BLOCK, num_warps=8)
    return chosen, entropy, log_sum


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
    rows, vocabulary = logits.shape
    out = torch.empty_like(logits, dtype=dtype)
    by_entropy = torch.zeros_like(by_logprob) if by_entropy is None else by_entropy
    _backward[(rows, triton.cdiv(vocabulary, BLOCK))](
        logits, tokens, factor, log_sum, entropy, by_logprob.contiguous(), by_entropy.contiguous(), out,
        vocabulary, BLOCK, num_warps=8,
    )  # fmt: skip
    return out
