"""`formulas` on CUDA: one launch each, or one for each adapter."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from coterie.kernels import decode_ops
from coterie.kernels.training_ops import Lift


@triton.jit
def _norm(x, y, weight, total, out, sizes, epsilon, width, ADD: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    real = at < width
    h = tl.load(x + row * width + at, mask=real, other=0.0).to(tl.float32)
    if ADD:
        h += tl.load(y + row * width + at, mask=real, other=0.0).to(tl.float32)
        tl.store(total + row * width + at, h, mask=real)
    size = tl.rsqrt(tl.sum(h * h, axis=0) / width + epsilon)
    factor = tl.load(weight + at, mask=real, other=0.0).to(tl.float32)
    tl.store(sizes + row, size)
    tl.store(out + row * width + at, (h * size * factor).to(out.dtype.element_ty), mask=real)


@triton.jit
def _norm_back(slope, x, weight, sizes, more, out, width, ADD: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    real = at < width
    h = tl.load(x + row * width + at, mask=real, other=0.0).to(tl.float32)
    factor = tl.load(weight + at, mask=real, other=0.0).to(tl.float32)
    by_direction = tl.load(slope + row * width + at, mask=real, other=0.0).to(tl.float32) * factor
    size = tl.load(sizes + row)
    along = tl.sum(by_direction * h, axis=0) / width * size * size
    result = (by_direction - h * along) * size
    if ADD:
        result += tl.load(more + row * width + at, mask=real, other=0.0).to(tl.float32)
    tl.store(out + row * width + at, result.to(out.dtype.element_ty), mask=real)


def norm(x: Tensor, weight: Tensor, epsilon: float, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    return _normed(x.contiguous(), None, weight, epsilon, dtype)[1:]


def add_norm(x: Tensor, y: Tensor, weight: Tensor, epsilon: float, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    return _normed(x.contiguous(), y.contiguous(), weight, epsilon, dtype)


def _normed(
    x: Tensor, y: Tensor | None, weight: Tensor, epsilon: float, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    width, total = x.shape[-1], x if y is None else torch.empty_like(x)
    out, size = torch.empty_like(x, dtype=dtype), x.new_empty(*x.shape[:-1], 1, dtype=torch.float32)
    block = triton.next_power_of_2(width)
    _norm[(x.numel() // width,)](
        x, y, weight, total, out, size, epsilon, width, y is not None, block, num_warps=_warps(block)
    )
    return total, out, size


def norm_back(slope: Tensor, x: Tensor, weight: Tensor, size: Tensor, more: Tensor | None = None) -> Tensor:
    slope, x, width = slope.contiguous(), x.contiguous(), x.shape[-1]
    more = None if more is None else more.contiguous()
    out, block = torch.empty_like(x), triton.next_power_of_2(width)
    _norm_back[(x.numel() // width,)](
        slope, x, weight, size, more, out, width, more is not None, block, num_warps=_warps(block)
    )
    return out


def _warps(block: int) -> int:
    return max(1, min(8, block // 256))


def gated(both: Tensor, lifts: Sequence[Lift], dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    rounded = both.dtype == dtype
    kept = both if rounded else torch.empty_like(both, dtype=dtype)
    return decode_ops.gated(both, lifts, dtype, kept if lifts or not rounded else None), kept


@triton.jit
def _gated_back(slope, both, out, width, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    real = at < width
    here = row * 2 * width + at
    gate = tl.load(both + here, mask=real, other=0.0).to(tl.float32)
    up = tl.load(both + here + width, mask=real, other=0.0).to(tl.float32)
    by_product = tl.load(slope + row * width + at, mask=real, other=0.0).to(tl.float32)
    share = tl.sigmoid(gate)
    kind = out.dtype.element_ty
    tl.store(out + here, (share * (1 + gate * (1 - share)) * up * by_product).to(kind), mask=real)
    tl.store(out + here + width, (share * gate * by_product).to(kind), mask=real)


def gated_back(slope: Tensor, both: Tensor) -> Tensor:
    out, (rows, width), block = torch.empty_like(both), slope.shape, 1024
    _gated_back[(rows, triton.cdiv(width, block))](slope.contiguous(), both, out, width, block)
    return out


@triton.jit
def _turn(
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
    turn_cos = tl.load(cos + token * WIDTH + d, mask=inside, other=0.0).to(tl.float32)
    turn_sin = tl.load(sin + token * WIDTH + d, mask=inside, other=0.0).to(tl.float32)
    place = out + (token * heads + head) * WIDTH + d
    tl.store(place, (own * turn_cos + other * turn_sin).to(out.dtype.element_ty), mask=real)


def turned(x: Tensor, cos: Tensor, sin: Tensor, back: bool = False) -> Tensor:
    x = x if x.stride(2) == 1 else x.contiguous()
    tokens, heads, width = x.shape
    out = x.new_empty(tokens, heads, width)
    _turn[(tokens,)](
        x, cos.contiguous(), sin.contiguous(), out, -1.0 if back else 1.0, x.stride(0), x.stride(1), heads,
        triton.next_power_of_2(heads), width, triton.next_power_of_2(width),
    )  # fmt: skip
    return out
