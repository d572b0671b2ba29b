"""Fused kernels on CUDA: what a model does between its products."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from coterie.kernels.pdl_launch import begin, early
from coterie.kernels.training_ops import Lift

LIFTED = 16  # rows to which a program adds their adapters


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
def _low_product(
    low, up, row, out, here, real, low_step, up_step, rank, COLUMNS: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    """What an adapter adds to these outputs of these rows."""
    total = tl.zeros([row.shape[0], out.shape[0]], tl.float32)
    for first in range(0, rank, COLUMNS):
        column = first + tl.arange(0, COLUMNS)
        inside = column < rank
        read = tl.load(low + row[:, None] * low_step + column[None, :], mask=here[:, None] & inside[None, :], other=0.0)
        lifts = up + out[None, :].to(tl.int64) * up_step + column[:, None]
        factor = tl.load(lifts, mask=inside[:, None] & real[None, :], other=0.0)
        total += tl.dot(read.to(up.dtype.element_ty), factor, input_precision=EXACT)
    return total


@triton.jit
def _gated(
    both, g_low, g_up, u_low, u_up, out, kept, rows, width, step, g_low_step, g_up_step, g_rank, u_low_step, u_up_step,
    u_rank, LIFT: tl.constexpr, KEEP: tl.constexpr, ROWS: tl.constexpr, OUTS: tl.constexpr, COLUMNS: tl.constexpr,
    EXACT: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    begin(EARLY)
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    at = tl.program_id(1) * OUTS + tl.arange(0, OUTS)
    here, real = row < rows, at < width
    mask, place = here[:, None] & real[None, :], row[:, None] * step + at[None, :]
    gate = tl.load(both + place, mask=mask, other=0.0).to(tl.float32)
    up = tl.load(both + place + width, mask=mask, other=0.0).to(tl.float32)
    if LIFT:
        gate += _low_product(g_low, g_up, row, at, here, real, g_low_step, g_up_step, g_rank, COLUMNS, EXACT)
        up += _low_product(u_low, u_up, row, at, here, real, u_low_step, u_up_step, u_rank, COLUMNS, EXACT)
    if KEEP:
        tl.store(kept + row[:, None] * 2 * width + at[None, :], gate.to(kept.dtype.element_ty), mask=mask)
        tl.store(kept + row[:, None] * 2 * width + width + at[None, :], up.to(kept.dtype.element_ty), mask=mask)
    result = (gate * tl.sigmoid(gate) * up).to(out.dtype.element_ty)
    tl.store(out + row[:, None] * width + at[None, :], result, mask=mask)


def gated(both: Tensor, lifts: Sequence[Lift], dtype: torch.dtype, kept: Tensor | None = None) -> Tensor:
    """The first of what `formulas.gated` gives, in one launch for each run of tokens; the second goes to `kept`."""
    count, width = len(both), both.shape[1] // 2
    out = both.new_empty(count, width, dtype=dtype)
    for tokens, found in _runs(lifts, count):
        here, (rows, outs) = both[tokens], (16, 256) if found else (1, 1024)
        (*gate, gate_steps), (*up, up_steps) = (_side(found, half, here) for half in (0, width))
        exact = "ieee" if gate[1].dtype == torch.float32 else "tf32"
        _gated[(triton.cdiv(len(here), rows), triton.cdiv(width, outs))](
            here, *gate, *up, out[tokens], None if kept is None else kept[tokens], len(here), width, both.stride(0),
            *gate_steps, *up_steps, bool(found), kept is not None, rows, outs, 16, exact, **early(both),
        )  # fmt: skip
    return out


def _runs(lifts: Sequence[Lift], rows: int) -> Iterator[tuple[slice, list[Lift]]]:
    """Every token once, with what is added to it."""
    at = 0
    for tokens, found in groupby(lifts, key=lambda lift: lift.tokens):
        if at < tokens.start:
            yield slice(at, tokens.start), []
        yield tokens, list(found)
        at = tokens.stop
    if at < rows:
        yield slice(at, rows), []


def _side(lifts: Sequence[Lift], start: int, both: Tensor) -> tuple[Tensor, Tensor, tuple[int, int, int]]:
    """Of the lift of outputs that start there: its factors, their steps from row to row, and its rank; 0 for none."""
    for _, outs, low, up in lifts:
        if outs.start == start:
            return low, up, (low.stride(0), up.stride(0), low.shape[1])
    return both, both, (0, 0, 0)


@triton.jit
def _summed(place, mask, part_size, PARTS: tl.constexpr):
    total = tl.load(place, mask=mask, other=0.0).to(tl.float32)
    for part in tl.static_range(1, PARTS):
        total += tl.load(place + part * part_size, mask=mask, other=0.0).to(tl.float32)
    return total


@triton.jit
def _lifted(
    line, up, first, last, start, end, out, here, outs, columns, part_size, PARTS: tl.constexpr,
    COLUMNS: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    """What the layers say at these outputs, and each row's own adapter."""
    real = out < outs
    total = _summed(line + out[None, :], here[:, None] & real[None, :], part_size, PARTS)
    for at in range(start, end, COLUMNS):
        column = at + tl.arange(0, COLUMNS)
        own = (column[None, :] >= first[:, None]) & (column[None, :] < last[:, None])
        read = _summed(line + outs + column[None, :], own, part_size, PARTS).to(up.dtype.element_ty)
        lifts = up + out[None, :].to(tl.int64) * columns + column[:, None]
        factor = tl.load(lifts, mask=(column < end)[:, None] & real[None, :], other=0.0)
        total += tl.dot(read, factor, input_precision=EXACT)
    return total


@triton.jit
def _lift(
    wide, up, spans, who, out, rows, outs, columns, stride, PARTS: tl.constexpr, GATE: tl.constexpr,
    ROWS: tl.constexpr, OUTS: tl.constexpr, COLUMNS: tl.constexpr, EXACT: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    begin(EARLY)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    at = tl.program_id(1) * OUTS + tl.arange(0, OUTS)
    here, size, part_size = row < rows, outs // (1 + GATE), rows * (outs + columns)
    line = wide + row[:, None].to(tl.int64) * (outs + columns)
    whose = tl.load(who + row * stride, mask=here, other=-1)
    first = tl.load(spans + whose * 2, mask=whose >= 0, other=columns)
    last = tl.load(spans + whose * 2 + 1, mask=whose >= 0, other=0)
    start, end = tl.min(first, axis=0), tl.max(last, axis=0)
    result = _lifted(
        line, up, first, last, start, end, at, here, outs, columns, part_size, PARTS, COLUMNS, EXACT,
    )  # fmt: skip
    if GATE:
        second = _lifted(
            line, up, first, last, start, end, size + at, here, outs, columns, part_size, PARTS, COLUMNS, EXACT,
        )  # fmt: skip
        result = result * tl.sigmoid(result) * second
    place = out + row[:, None].to(tl.int64) * size + at[None, :]
    tl.store(place, result.to(out.dtype.element_ty), mask=here[:, None] & (at < size)[None, :])


def lift(wide: Tensor, up: Tensor, spans: Tensor, who: Tensor, gate: bool = False) -> Tensor:
    """Add each row's own adapter: wide [R, N + C], up [N, C], who [R], and the first column of each adapter and the
    first that is not its own, spans [adapters, 2] → [R, N]. It is fastest where the rows of an adapter lie together.

    What is wide may come in parts: [parts, R, N + C].
    With a gate it is SiLU of the first half times the second, as precise as the adapters: → [R, N / 2].
    """
    rows, (outs, columns), dtype = wide.shape[-2], up.shape, up.dtype if gate else wide.dtype
    parts = wide.numel() // (rows * (outs + columns))
    out, exact = wide.new_empty(rows, outs // (1 + gate), dtype=dtype), "ieee" if up.dtype == torch.float32 else "tf32"
    grid = (triton.cdiv(rows, LIFTED), triton.cdiv(out.shape[1], 64))
    _lift[grid](
        wide, up, spans, who, out, rows, outs, columns, who.stride(0), parts, gate, LIFTED, 64, 32, exact,
        **early(wide),
    )  # fmt: skip
    return out
