"""Top-k and top-p (nucleus) masks in Triton, for CUDA graphs: a binary search for each row's threshold, no sort."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from coterie.kernels.pdl_launch import pdl_options, pdl_wait

BLOCK = 8192  # tokens per load


@triton.jit
def _rank(logit):
    """Map logits to integers of the same order."""
    bits = (logit + 0.0).to(tl.int32, bitcast=True)  # + 0.0 turns −0.0 into 0.0
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def _mass_above(line, vocabulary, rank, threshold, top, temperature, MASS: tl.constexpr, BLOCK: tl.constexpr):
    """Mass of the tokens above a rank, or their number."""
    total = tl.zeros([BLOCK], tl.float32)
    for first in range(0, vocabulary, BLOCK):
        token = first + tl.arange(0, BLOCK)
        logit = tl.load(line + token, mask=token < vocabulary, other=-float("inf"))
        ranks = _rank(logit)
        weight = tl.exp((logit - top) / temperature) if MASS else tl.full([BLOCK], 1.0, tl.float32)
        total += tl.where((ranks > rank) & (ranks >= threshold) & (token < vocabulary), weight, 0.0)
    return tl.sum(total, axis=0)


@triton.jit
def _search(line, vocabulary, limit, threshold, top, temperature, MASS: tl.constexpr, BLOCK: tl.constexpr):
    """Binary search for the lowest rank above which there is less than the limit."""
    low = tl.full([], -(1 << 31), tl.int64)
    high = tl.full([], (1 << 31) - 1, tl.int64)
    for _ in range(32):
        middle = (low + high) >> 1
        if _mass_above(line, vocabulary, middle.to(tl.int32), threshold, top, temperature, MASS, BLOCK) < limit:
            high = middle
        else:
            low = middle + 1
    return tl.maximum(high.to(tl.int32), threshold)


@triton.jit
def _top_k_top_p(
    logits, state, floats, vocabulary, stride, TOP_P: tl.constexpr, TOP_K: tl.constexpr, TEMPERATURE: tl.constexpr,
    BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    pdl_wait(PDL)
    row = tl.program_id(0)
    line = logits + row.to(tl.int64) * vocabulary
    here, floats_here = state + row * stride, floats + row * stride
    top_p, top_k, temperature = tl.load(floats_here + TOP_P), tl.load(here + TOP_K), tl.load(floats_here + TEMPERATURE)
    temperature = tl.where(temperature == 0.0, 1.0, temperature)
    if (tl.load(here + 1) >= 0) & ((top_p < 1.0) | (top_k > 0)):
        threshold = tl.full([], -(1 << 31), tl.int32)
        if top_k > 0:
            threshold = _search(line, vocabulary, top_k.to(tl.float32), threshold, 0.0, 1.0, False, BLOCK)
        if top_p < 1.0:
            top = tl.full([], -float("inf"), tl.float32)
            for first in range(0, vocabulary, BLOCK):
                token = first + tl.arange(0, BLOCK)
                logit = tl.load(line + token, mask=token < vocabulary, other=-float("inf"))
                top = tl.maximum(top, tl.max(logit, axis=0))
            total = _mass_above(line, vocabulary, -(1 << 31), threshold, top, temperature, True, BLOCK)
            limit = tl.maximum(top_p * total, 1e-30)  # the likeliest token is always kept
            threshold = _search(line, vocabulary, limit, threshold, top, temperature, True, BLOCK)
        for first in range(0, vocabulary, BLOCK):
            token = first + tl.arange(0, BLOCK)
            logit = tl.load(line + token, mask=token < vocabulary, other=0.0)
            out = (token < vocabulary) & (_rank(logit) < threshold)
            tl.store(line + token, tl.full([BLOCK], -float("inf"), tl.float32), mask=out)


def top_k_top_p(logits: Tensor, decode_state: Tensor, top_p: int, top_k: int, temperature: int) -> None:
    """As `top_p_top_k.top_k_top_p`, in place; `top_p`, `top_k` and `temperature` are columns of the decode state."""
    rows, vocabulary = logits.shape
    assert logits.dtype == torch.float32 and logits.is_contiguous()
    _top_k_top_p[(rows,)](
        logits, decode_state, decode_state.view(torch.float32), vocabulary, decode_state.shape[1], top_p, top_k,
        temperature, BLOCK, num_warps=16, **pdl_options(logits),
    )  # fmt: skip
