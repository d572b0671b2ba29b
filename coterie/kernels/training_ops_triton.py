"""`training_ops` as Triton kernels on CUDA: RMSNorm, SwiGLU with LoRA deltas and RoPE, forward and backward."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from coterie.kernels import decode_ops
from coterie.kernels.matmul import LoraDelta


@triton.jit
def _rms_norm(x, y, weight, total, out, rstds, eps, width, ADD: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    real = at < width
    h = tl.load(x + row * width + at, mask=real, other=0.0).to(tl.float32)
    if ADD:
        h += tl.load(y + row * width + at, mask=real, other=0.0).to(tl.float32)
        tl.store(total + row * width + at, h, mask=real)
    rstd = tl.rsqrt(tl.sum(h * h, axis=0) / width + eps)
    factor = tl.load(weight + at, mask=real, other=0.0).to(tl.float32)
    tl.store(rstds + row, rstd)
    tl.store(out + row * width + at, (h * rstd * factor).to(out.dtype.element_ty), mask=real)


@triton.jit
def _rms_norm_backward(grad, x, weight, rstds, more, out, width, ADD: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    real = at < width
    h = tl.load(x + row * width + at, mask=real, other=0.0).to(tl.float32)
    factor = tl.load(weight + at, mask=real, other=0.0).to(tl.float32)
    weighted = tl.load(grad + row * width + at, mask=real, other=0.0).to(tl.float32) * factor
    rstd = tl.load(rstds + row)
    projection = tl.sum(weighted * h, axis=0) / width * rstd * rstd
    result = (weighted - h * projection) * rstd
    if ADD:
        result += tl.load(more + row * width + at, mask=real, other=0.0).to(tl.float32)
    tl.store(out + row * width + at, result.to(out.dtype.element_ty), mask=real)


def rms_norm(x: Tensor, weight: Tensor, eps: float, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    return _launch_rms_norm(x.contiguous(), None, weight, eps, dtype)[1:]


def add_rms_norm(x: Tensor, y: Tensor, weight: Tensor, eps: float, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    return _launch_rms_norm(x.contiguous(), y.contiguous(), weight, eps, dtype)


def _launch_rms_norm(
    x: Tensor, y: Tensor | None, weight: Tensor, eps: float, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    width, total = x.shape[-1], x if y is None else torch.empty_like(x)
    out, rstd = torch.empty_like(x, dtype=dtype), x.new_empty(*x.shape[:-1], 1, dtype=torch.float32)
    rows, block = x.numel() // width, triton.next_power_of_2(width)
    _rms_norm[(rows,)](x, y, weight, total, out, rstd, eps, width, y is not None, block, num_warps=_warps(block))
    return total, out, rstd


def rms_norm_backward(grad: Tensor, x: Tensor, weight: Tensor, rstd: Tensor, add: Tensor | None = None) -> Tensor:
    grad, x, width = grad.contiguous(), x.contiguous(), x.shape[-1]
    add = None if add is None else add.contiguous()
    out, rows, block = torch.empty_like(x), x.numel() // width, triton.next_power_of_2(width)
    has_add, warps = add is not None, _warps(block)
    _rms_norm_backward[(rows,)](grad, x, weight, rstd, add, out, width, has_add, block, num_warps=warps)
    return out


def _warps(block: int) -> int:
    return max(1, min(8, block // 256))


def swiglu(gate_up: Tensor, deltas: Sequence[LoraDelta], dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    rounded = gate_up.dtype == dtype
    summed = gate_up if rounded else torch.empty_like(gate_up, dtype=dtype)
    return decode_ops.swiglu(gate_up, deltas, dtype, summed if deltas or not rounded else None), summed


@triton.jit
def _swiglu_backward(grad, gate_up, out, width, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    real = at < width
    here = row * 2 * width + at
    gate = tl.load(gate_up + here, mask=real, other=0.0).to(tl.float32)
    up = tl.load(gate_up + here + width, mask=real, other=0.0).to(tl.float32)
    grad_out = tl.load(grad + row * width + at, mask=real, other=0.0).to(tl.float32)
    sigmoid = tl.sigmoid(gate)
    kind = out.dtype.element_ty
    tl.store(out + here, (sigmoid * (1 + gate * (1 - sigmoid)) * up * grad_out).to(kind), mask=real)
    tl.store(out + here + width, (sigmoid * gate * grad_out).to(kind), mask=real)


def swiglu_backward(grad: Tensor, gate_up: Tensor) -> Tensor:
    out, (rows, width), block = torch.empty_like(gate_up), grad.shape, 1024
    _swiglu_backward[(rows, triton.cdiv(width, block))](grad.contiguous(), gate_up, out, width, block)
    return out


@triton.jit
def _rope(
    x, cos, sin, out, sign, token_step, head_step, heads,
    HEADS: tl.constexpr, WIDTH: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    head, d = tl.arange(0, HEADS)[:, None], tl.arange(0, WIDE)[None, :]
    partner, inside = (d + WIDTH // 2) % WIDTH, d < WIDTH
    real = (head < heads) & inside
    here = x + token * token_step + head * head_step
    own = tl.load(here + d, mask=real, other=0.0).to(tl.float32)
    other = tl.load(here + partner, mask=real, other=0.0).to(tl.float32) * tl.where(d < WIDTH // 2, -sign, sign)
    rope_cos = tl.load(cos + token * WIDTH + d, mask=inside, other=0.0).to(tl.float32)
    rope_sin = tl.load(sin + token * WIDTH + d, mask=inside, other=0.0).to(tl.float32)
    place = out + (token * heads + head) * WIDTH + d
    tl.store(place, (own * rope_cos + other * rope_sin).to(out.dtype.element_ty), mask=real)


def rope(x: Tensor, cos: Tensor, sin: Tensor, inverse: bool = False) -> Tensor:
    x = x if x.stride(2) == 1 else x.contiguous()
    tokens, heads, width = x.shape
    out = x.new_empty(tokens, heads, width)
    _rope[(tokens,)](
        x, cos.contiguous(), sin.contiguous(), out, -1.0 if inverse else 1.0, x.stride(0), x.stride(1), heads,
        triton.next_power_of_2(heads), width, triton.next_power_of_2(width),
    )  # fmt: skip
    return out
