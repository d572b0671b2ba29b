"""Top-k and top-p inside of a captured step on CUDA: for each row the least logit that is kept is searched for."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from coterie.kernels.pdl_launch import begin, early

BLOCK = 8192  # tokens read at once


@triton.jit
def _ranked(logit):
    """A whole number for each: the larger the logit, the larger."""
    bits = (logit + 0.0).to(tl.int32, bitcast=True)  # there is a zero below zero
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def _above(line, vocabulary, rank, lowest, top, heat, MASS: tl.constexpr, BLOCK: tl.constexpr):
    """What the tokens above a rank weigh: their mass, or how many they are."""
    total = tl.zeros([BLOCK], tl.float32)
    for first in range(0, vocabulary, BLOCK):
        token = first + tl.arange(0, BLOCK)
        logit = tl.load(line + token, mask=token < vocabulary, other=-float("inf"))
        ranks = _ranked(logit)
        weight = tl.exp((logit - top) / heat) if MASS else tl.full([BLOCK], 1.0, tl.float32)
        total += tl.where((ranks > rank) & (ranks >= lowest) & (token < vocabulary), weight, 0.0)
    return tl.sum(total, axis=0)


@triton.jit
def _least(line, vocabulary, limit, lowest, top, heat, MASS: tl.constexpr, BLOCK: tl.constexpr):
    """The lowest rank above which there is less than the limit."""
    low = tl.full([], -(1 << 31), tl.int64)
    high = tl.full([], (1 << 31) - 1, tl.int64)
    for _ in range(32):
        middle = (low + high) >> 1
        if _above(line, vocabulary, middle.to(tl.int32), lowest, top, heat, MASS, BLOCK) < limit:
            high = middle
        else:
            low = middle + 1
    return tl.maximum(high.to(tl.int32), lowest)


@triton.jit
def _narrow(
    logits, sheet, floats, vocabulary, stride, TOP_P: tl.constexpr, TOP_K: tl.constexpr, HEAT: tl.constexpr,
    BLOCK: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    begin(EARLY)
    row = tl.program_id(0)
    line = logits + row.to(tl.int64) * vocabulary
    here, floats_here = sheet + row * stride, floats + row * stride
    top_p, top_k, heat = tl.load(floats_here + TOP_P), tl.load(here + TOP_K), tl.load(floats_here + HEAT)
    heat = tl.where(heat == 0.0, 1.0, heat)
    if (tl.load(here + 1) >= 0) & ((top_p < 1.0) | (top_k > 0)):
        lowest = tl.full([], -(1 << 31), tl.int32)
        if top_k > 0:
            lowest = _least(line, vocabulary, top_k.to(tl.float32), lowest, 0.0, 1.0, False, BLOCK)
        if top_p < 1.0:
            top = tl.full([], -float("inf"), tl.float32)
            for first in range(0, vocabulary, BLOCK):
                token = first + tl.arange(0, BLOCK)
                logit = tl.load(line + token, mask=token < vocabulary, other=-float("inf"))
                top = tl.maximum(top, tl.max(logit, axis=0))
            total = _above(line, vocabulary, -(1 << 31), lowest, top, heat, True, BLOCK)
            limit = tl.maximum(top_p * total, 1e-30)  # the likeliest always stays
            lowest = _least(line, vocabulary, limit, lowest, top, heat, True, BLOCK)
        for first in range(0, vocabulary, BLOCK):
            token = first + tl.arange(0, BLOCK)
            logit = tl.load(line + token, mask=token < vocabulary, other=0.0)
            out = (token < vocabulary) & (_ranked(logit) < lowest)
            tl.store(line + token, tl.full([BLOCK], -float("inf"), tl.float32), mask=out)


def narrow(logits: Tensor, sheet: Tensor, top_p: int, top_k: int, heat: int) -> None:
    """As `keep_likely`, in place; the columns of the sheet say which tokens a row may draw."""
    rows, vocabulary = logits.shape
    assert logits.dtype == torch.float32 and logits.is_contiguous()
    _narrow[(rows,)](
        logits, sheet, sheet.view(torch.float32), vocabulary, sheet.shape[1], top_p, top_k, heat, BLOCK,
        num_warps=16, **early(logits),
    )  # fmt: skip
