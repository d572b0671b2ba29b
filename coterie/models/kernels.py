"""Fused kernels for sampling on CUDA: what a model does between its products, one launch each."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from coterie.models.early import begin, early


@triton.jit
def _add_norm(
    x, y, weight, out, epsilon, width, part_size, PARTS: tl.constexpr, BLOCK: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    begin(EARLY)
    row = tl.program_id(0).to(tl.int64) * width
    at = tl.arange(0, BLOCK)
    real = at < width
    h = tl.load(x + row + at, mask=real, other=0.0)
    if PARTS:
        for part in tl.static_range(PARTS):
            h += tl.load(y + part * part_size + row + at, mask=real, other=0.0).to(tl.float32)
        tl.store(x + row + at, h, mask=real)
    size = tl.rsqrt(tl.sum(h * h, axis=0) / width + epsilon)
    factor = tl.load(weight + at, mask=real, other=0.0).to(tl.float32)
    tl.store(out + row + at, (h * size * factor).to(out.dtype.element_ty), mask=real)


def add_norm(x: Tensor, y: Tensor | None, norm: Any) -> Tensor:
    """x += y in place where there is a y, then the RMS norm of x, as precise as its weight: [T, N] → [T, N].

    y [T, N] may come in parts: [parts, T, N].
    x itself, which every layer adds to, is kept in full precision: that costs nothing, and the learner does so too.
    """
    out, width = torch.empty_like(x, dtype=norm.weight.dtype), x.shape[1]
    block, parts = triton.next_power_of_2(width), 0 if y is None else y.numel() // x.numel()
    _add_norm[(len(x),)](
        x, x if y is None else y, norm.weight, out, norm.variance_epsilon, width, x.numel(), parts, block,
        num_warps=max(1, min(8, block // 256)), **early(x),
    )  # fmt: skip
    return out


@triton.jit
def _gated(both, out, width, BLOCK: tl.constexpr, EARLY: tl.constexpr):
    begin(EARLY)
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    real = at < width
    gate = tl.load(both + row * 2 * width + at, mask=real, other=0.0)
    up = tl.load(both + row * 2 * width + width + at, mask=real, other=0.0)
    wide = gate.to(tl.float32)
    tl.store(out + row * width + at, (wide * tl.sigmoid(wide)).to(gate.dtype) * up, mask=real)


def gated(both: Tensor) -> Tensor:
    """SiLU of the first half times the second: [T, 2N] → [T, N]."""
    rows, width = len(both), both.shape[1] // 2
    out, block = both.new_empty(rows, width), 1024
    _gated[(rows, triton.cdiv(width, block))](both, out, width, block, **early(both))
    return out


@triton.jit
def _lifted(
    line, up, owner, whose, out, here, outs, columns, COLUMNS: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    """What the layers say at these outputs, and each row's own adapter."""
    real = out < outs
    total = tl.load(line + out[None, :], mask=here[:, None] & real[None, :], other=0.0).to(tl.float32)
    for first in range(0, columns, COLUMNS):
        column = first + tl.arange(0, COLUMNS)
        inside = column < columns
        belongs = tl.load(owner + column, mask=inside, other=-2)
        own = (belongs[None, :] == whose[:, None]) & here[:, None]
        read = tl.load(line + outs + column[None, :], mask=own, other=0.0).to(up.dtype.element_ty)
        lifts = up + out[None, :].to(tl.int64) * columns + column[:, None]
        factor = tl.load(lifts, mask=inside[:, None] & real[None, :], other=0.0)
        total += tl.dot(read, factor, input_precision=EXACT)
    return total


@triton.jit
def _lift(
    wide, up, owner, who, out, rows, outs, columns, stride, GATE: tl.constexpr,
    ROWS: tl.constexpr, OUTS: tl.constexpr, COLUMNS: tl.constexpr, EXACT: tl.constexpr,
    EARLY: tl.constexpr,
):  # fmt: skip
    begin(EARLY)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    at = tl.program_id(1) * OUTS + tl.arange(0, OUTS)
    here, size = row < rows, outs // (1 + GATE)
    line = wide + row[:, None].to(tl.int64) * (outs + columns)
    whose = tl.load(who + row * stride, mask=here, other=-1)
    kind: tl.constexpr = out.dtype.element_ty
    result = _lifted(line, up, owner, whose, at, here, outs, columns, COLUMNS, EXACT).to(kind)
    if GATE:
        gate = result.to(tl.float32)
        second = _lifted(line, up, owner, whose, size + at, here, outs, columns, COLUMNS, EXACT).to(kind)
        result = (gate * tl.sigmoid(gate)).to(kind) * second
    place = out + row[:, None].to(tl.int64) * size + at[None, :]
    tl.store(place, result, mask=here[:, None] & (at < size)[None, :])


def lift(wide: Tensor, up: Tensor, owner: Tensor, who: Tensor, gate: bool = False) -> Tensor:
    """Add each row's own adapter: wide [R, N + C], up [N, C], the owner of each column [C], who [R] → [R, N].

    With a gate it is SiLU of the first half times the second: → [R, N / 2].
    """
    rows, (outs, columns) = len(wide), up.shape
    out, exact = wide.new_empty(rows, outs // (1 + gate)), "ieee" if up.dtype == torch.float32 else "tf32"
    grid = (triton.cdiv(rows, 32), triton.cdiv(out.shape[1], 64))
    _lift[grid](
        wide, up, owner, who, out, rows, outs, columns, who.stride(0), gate, 32, 64, 32, exact, **early(wide),
    )  # fmt: skip
    return out
