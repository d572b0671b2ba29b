"""Fused Triton kernels between the GEMMs of a decode step, forward only: add + RMSNorm, SwiGLU, per-row LoRA deltas."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from coterie.kernels.matmul import LoraDelta
from coterie.kernels.pdl_launch import pdl_options, pdl_wait

LORA_ROWS = 16  # rows per program of `lora_delta`


@triton.jit
def _add_rms_norm(
    x, y, weight, out, epsilon, width, split_size, SPLITS: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    pdl_wait(PDL)
    row = tl.program_id(0).to(tl.int64) * width
    at = tl.arange(0, BLOCK)
    real = at < width
    h = tl.load(x + row + at, mask=real, other=0.0)
    if SPLITS:
        for split in tl.static_range(SPLITS):
            h += tl.load(y + split * split_size + row + at, mask=real, other=0.0).to(tl.float32)
        tl.store(x + row + at, h, mask=real)
    rstd = tl.rsqrt(tl.sum(h * h, axis=0) / width + epsilon)
    factor = tl.load(weight + at, mask=real, other=0.0).to(tl.float32)
    tl.store(out + row + at, (h * rstd * factor).to(out.dtype.element_ty), mask=real)


def add_rms_norm(x: Tensor, y: Tensor | None, norm: Any) -> Tensor:
    """x += y in place, if y is given, then RMSNorm of x in the dtype of its weight: [T, N] → [T, N].

    y [T, N] may be split-K partial sums [splits, T, N].
    The residual stream x stays in fp32, as in the learner; this takes no more time.
    """
    out, width = torch.empty_like(x, dtype=norm.weight.dtype), x.shape[1]
    block, splits = triton.next_power_of_2(width), 0 if y is None else y.numel() // x.numel()
    _add_rms_norm[(len(x),)](
        x, x if y is None else y, norm.weight, out, norm.variance_epsilon, width, x.numel(), splits, block,
        num_warps=max(1, min(8, block // 256)), **pdl_options(x),
    )  # fmt: skip
    return out


@triton.jit
def _lora_product(
    low, up, row, out, here, real, low_step, up_step, rank, COLUMNS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """low·upᵀ of one adapter for these rows and outputs."""
    total = tl.zeros([row.shape[0], out.shape[0]], tl.float32)
    for first in range(0, rank, COLUMNS):
        column = first + tl.arange(0, COLUMNS)
        inside = column < rank
        read = tl.load(low + row[:, None] * low_step + column[None, :], mask=here[:, None] & inside[None, :], other=0.0)
        ups = up + out[None, :].to(tl.int64) * up_step + column[:, None]
        factor = tl.load(ups, mask=inside[:, None] & real[None, :], other=0.0)
        total += tl.dot(read.to(up.dtype.element_ty), factor, input_precision=PRECISION)
    return total


@triton.jit
def _swiglu(
    gate_up, g_low, g_up, u_low, u_up, out, summed, rows, width, step, g_low_step, g_up_step, g_rank, u_low_step,
    u_up_step, u_rank, LORA: tl.constexpr, SAVE: tl.constexpr, ROWS: tl.constexpr, OUTS: tl.constexpr,
    COLUMNS: tl.constexpr, PRECISION: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    pdl_wait(PDL)
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    at = tl.program_id(1) * OUTS + tl.arange(0, OUTS)
    here, real = row < rows, at < width
    mask, place = here[:, None] & real[None, :], row[:, None] * step + at[None, :]
    gate = tl.load(gate_up + place, mask=mask, other=0.0).to(tl.float32)
    up = tl.load(gate_up + place + width, mask=mask, other=0.0).to(tl.float32)
    if LORA:
        gate += _lora_product(g_low, g_up, row, at, here, real, g_low_step, g_up_step, g_rank, COLUMNS, PRECISION)
        up += _lora_product(u_low, u_up, row, at, here, real, u_low_step, u_up_step, u_rank, COLUMNS, PRECISION)
    if SAVE:
        tl.store(summed + row[:, None] * 2 * width + at[None, :], gate.to(summed.dtype.element_ty), mask=mask)
        tl.store(summed + row[:, None] * 2 * width + width + at[None, :], up.to(summed.dtype.element_ty), mask=mask)
    result = (gate * tl.sigmoid(gate) * up).to(out.dtype.element_ty)
    tl.store(out + row[:, None] * width + at[None, :], result, mask=mask)


def swiglu(gate_up: Tensor, deltas: Sequence[LoraDelta], dtype: torch.dtype, summed: Tensor | None = None) -> Tensor:
    """silu(gate)·up after adding LoRA deltas, one launch per run of tokens: [T, 2N] → [T, N]; as `training_ops.swiglu`.

    `summed` [T, 2N], if given, receives gate and up with the deltas, for the backward.
    """
    count, width = len(gate_up), gate_up.shape[1] // 2
    out = gate_up.new_empty(count, width, dtype=dtype)
    for tokens, found in _runs(deltas, count):
        here, (rows, outs) = gate_up[tokens], (16, 256) if found else (1, 1024)
        (*gate, gate_steps), (*up, up_steps) = (_delta_of_half(found, half, here) for half in (0, width))
        precision = "ieee" if gate[1].dtype == torch.float32 else "tf32"
        _swiglu[(triton.cdiv(len(here), rows), triton.cdiv(width, outs))](
            here, *gate, *up, out[tokens], None if summed is None else summed[tokens], len(here), width,
            gate_up.stride(0), *gate_steps, *up_steps, bool(found), summed is not None, rows, outs, 16, precision,
            **pdl_options(gate_up),
        )  # fmt: skip
    return out


def _runs(deltas: Sequence[LoraDelta], rows: int) -> Iterator[tuple[slice, list[LoraDelta]]]:
    """Cover all tokens with runs that share the same deltas."""
    at = 0
    for tokens, found in groupby(deltas, key=lambda delta: delta.tokens):
        if at < tokens.start:
            yield slice(at, tokens.start), []
        yield tokens, list(found)
        at = tokens.stop
    if at < rows:
        yield slice(at, rows), []


def _delta_of_half(
    deltas: Sequence[LoraDelta], start: int, gate_up: Tensor
) -> tuple[Tensor, Tensor, tuple[int, int, int]]:
    """Low, up, their row strides and the rank of the delta whose outputs begin at `start`; rank 0 if there is none."""
    for _, outs, low, up in deltas:
        if outs.start == start:
            return low, up, (low.stride(0), up.stride(0), low.shape[1])
    return gate_up, gate_up, (0, 0, 0)


@triton.jit
def _sum_splits(place, mask, split_size, SPLITS: tl.constexpr):
    total = tl.load(place, mask=mask, other=0.0).to(tl.float32)
    for split in tl.static_range(1, SPLITS):
        total += tl.load(place + split * split_size, mask=mask, other=0.0).to(tl.float32)
    return total


@triton.jit
def _add_lora(
    line, up, first, last, start, end, out, here, outs, columns, split_size, SPLITS: tl.constexpr,
    COLUMNS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The base layers' outputs plus each row's own LoRA delta."""
    real = out < outs
    total = _sum_splits(line + out[None, :], here[:, None] & real[None, :], split_size, SPLITS)
    for at in range(start, end, COLUMNS):
        column = at + tl.arange(0, COLUMNS)
        own = (column[None, :] >= first[:, None]) & (column[None, :] < last[:, None])
        read = _sum_splits(line + outs + column[None, :], own, split_size, SPLITS).to(up.dtype.element_ty)
        ups = up + out[None, :].to(tl.int64) * columns + column[:, None]
        factor = tl.load(ups, mask=(column < end)[:, None] & real[None, :], other=0.0)
        total += tl.dot(read, factor, input_precision=PRECISION)
    return total


@triton.jit
def _lora_delta(
    wide, up, spans, adapters, out, rows, outs, columns, stride, SPLITS: tl.constexpr, SWIGLU: tl.constexpr,
    ROWS: tl.constexpr, OUTS: tl.constexpr, COLUMNS: tl.constexpr, PRECISION: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    pdl_wait(PDL)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    at = tl.program_id(1) * OUTS + tl.arange(0, OUTS)
    here, size, split_size = row < rows, outs // (1 + SWIGLU), rows * (outs + columns)
    line = wide + row[:, None].to(tl.int64) * (outs + columns)
    adapter = tl.load(adapters + row * stride, mask=here, other=-1)
    first = tl.load(spans + adapter * 2, mask=adapter >= 0, other=columns)
    last = tl.load(spans + adapter * 2 + 1, mask=adapter >= 0, other=0)
    start, end = tl.min(first, axis=0), tl.max(last, axis=0)
    result = _add_lora(
        line, up, first, last, start, end, at, here, outs, columns, split_size, SPLITS, COLUMNS, PRECISION,
    )  # fmt: skip
    if SWIGLU:
        second = _add_lora(
            line, up, first, last, start, end, size + at, here, outs, columns, split_size, SPLITS, COLUMNS, PRECISION,
        )  # fmt: skip
        result = result * tl.sigmoid(result) * second
    place = out + row[:, None].to(tl.int64) * size + at[None, :]
    tl.store(place, result.to(out.dtype.element_ty), mask=here[:, None] & (at < size)[None, :])


def lora_delta(wide: Tensor, up: Tensor, spans: Tensor, adapters: Tensor, swiglu: bool = False) -> Tensor:
    """Per-row LoRA: add to each row the delta of its own adapter, [R, N + C] → [R, N].

    wide holds the N base outputs, then the C = Σ rank low-rank activations of all adapters; it may be split-K partial
    sums [splits, R, N + C]. up [N, C] has the adapters' up matrices side by side, spans [adapters, 2] the column
    range of each, adapters [R] the row's adapter or −1. Fastest when rows with the same adapter are adjacent.
    `swiglu`: return silu(first half)·second half in the adapters' dtype, [R, N / 2].
    """
    rows, (outs, columns), dtype = wide.shape[-2], up.shape, up.dtype if swiglu else wide.dtype
    splits = wide.numel() // (rows * (outs + columns))
    out = wide.new_empty(rows, outs // (1 + swiglu), dtype=dtype)
    precision = "ieee" if up.dtype == torch.float32 else "tf32"
    grid = (triton.cdiv(rows, LORA_ROWS), triton.cdiv(out.shape[1], 64))
    _lora_delta[grid](
        wide, up, spans, adapters, out, rows, outs, columns, adapters.stride(0), splits, swiglu, LORA_ROWS, 64, 32,
        precision, **pdl_options(wide),
    )  # fmt: skip
    return out
