"""Matrix products: CPU layouts and backends for few rows, fp32 outputs of half-precision inputs, LoRA deltas."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

SKINNY_ROWS = 96  # at most so many rows use the transposed product on a CPU
MKL_ROWS = 4  # at most so many rows are faster with MKL than with oneDNN
WEIGHT_SPLITS = 4  # pieces of the weight for a single row, so that every thread has work
ONEDNN = torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")


def is_skinny(x: Tensor) -> bool:
    """True for few rows on a CPU, where the transposed product is faster."""
    return x.shape[0] <= SKINNY_ROWS and x.is_cpu


def linear_inference(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`F.linear` of x [T, in] without gradient; a skinny result is stored transposed (column-major)."""
    if not x.is_cpu:
        return F.linear(x, weight, bias)
    if not is_skinny(x):
        y = _mm_onednn(x, weight)
        return y if bias is None else y.add_(bias)
    y = _mm_mkl(weight, x) if len(x) <= MKL_ROWS else _mm_onednn(weight, x)
    return (y if bias is None else y.add_(bias[:, None])).t()


def _mm_onednn(a: Tensor, b: Tensor) -> Tensor:
    """a [M, K] times bᵀ [K, N] with oneDNN where PyTorch has it: 50 to 90 % of the time of MKL."""
    if not ONEDNN or a.dtype != torch.float32 or b.dtype != torch.float32:
        return F.linear(a, b)  # under autocast the operands may differ, and oneDNN's operator does not cast them
    out: Tensor = torch.ops.mkldnn._linear_pointwise(a, b, None, "none", [], "")
    return out


def _mm_mkl(weight: Tensor, x: Tensor) -> Tensor:
    """weight [N, K] times xᵀ [K, T] with MKL. A single row would run on one thread, so the weight is split."""
    columns = x.contiguous().t()
    if len(x) != 1 or len(weight) % WEIGHT_SPLITS:
        return torch.mm(weight, columns)
    split = weight.view(WEIGHT_SPLITS, -1, len(columns))
    return torch.bmm(split, columns.expand(WEIGHT_SPLITS, -1, -1)).view(len(weight), 1)


def match_inference_layout(x: Tensor) -> Tensor:
    """x [T, N] in the memory layout of `linear_inference`, so that elementwise operations see one layout."""
    return x.t().contiguous().t() if is_skinny(x) else x


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`F.linear` with or without gradient; the result is row-major."""
    if torch.is_grad_enabled() or not x.is_cpu:
        return F.linear(x, weight, bias)
    return linear_inference(x.reshape(-1, x.shape[-1]), weight, bias).contiguous().view(*x.shape[:-1], len(weight))


def lm_head_logits(hidden: Tensor, head: Tensor, bias: Tensor | None = None) -> Tensor:
    """`F.linear`; without gradient in the layout of `linear_inference`, and on CUDA in fp32 even for half-precision
    inputs: rounding large logits to half would change the distribution."""
    if torch.is_grad_enabled():
        return F.linear(hidden, head, bias)
    if not hidden.is_cuda or hidden.dtype == torch.float32:
        return linear_inference(hidden, head, bias)
    return linear_fp32_out(hidden, head, bias)


def linear_fp32_out(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`F.linear` of x [T, in] without gradient, with an fp32 result; on CUDA the fp32 accumulator is never rounded.
    For residual sums, gate inputs and logits."""
    full = torch.promote_types(x.dtype, torch.float32)
    if not x.is_cuda or x.dtype == full:
        return F.linear(x, weight, bias).to(full)
    out = torch.mm(x, weight.t(), out_dtype=full)
    return out if bias is None else out.add_(bias)


def add_matmul_(out: Tensor, x: Tensor, weight: Tensor, scale: float = 1.0) -> None:
    """out [T, N] += scale·x·weightᵀ in place, accumulated in the dtype of `out`."""
    if out.dtype == x.dtype:
        out.addmm_(x, weight.t(), alpha=scale)
    elif x.is_cuda:
        torch.ops.aten.addmm.dtype_out(out, x, weight.t(), out.dtype, alpha=scale, out=out)
    else:
        out.add_(linear_fp32_out(x, weight), alpha=scale)


class LoraDelta(NamedTuple):
    """An adapter's contribution low·upᵀ to some outputs of some tokens."""

    tokens: slice
    outs: slice
    low: Tensor  # [tokens, rank], x·downᵀ with the scale in it
    up: Tensor  # [outs, rank]


def add_lora_deltas_(out: Tensor, deltas: Sequence[LoraDelta]) -> None:
    """Add LoRA deltas to out [T, N] in place."""
    for tokens, outs, low, up in deltas:
        add_matmul_(out[tokens, outs], low, up)
