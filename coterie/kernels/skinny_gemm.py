"""Skinny GEMMs in Triton: a few rows times large weights at memory bandwidth, for the large layers of a decode step."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from coterie.kernels.pdl_launch import pdl_options, pdl_wait

SWIGLU_ROWS, SPLIT_K_ROWS = 64, 256  # with more rows, or smaller layers, cuBLAS is as fast
MIN_WEIGHTS = 1 << 22
OUTS, MAX_TILE_ROWS = 64, 128  # outputs and rows per program
PROGRAMS = 132  # one per SM


@triton.jit
def _swiglu_gemm(
    x, w, bias, out, rows, outs, width,
    BIAS: tl.constexpr, TILE_ROWS: tl.constexpr, OUTS: tl.constexpr, DEPTH: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    # The weights are the M side of the tensor core tile, the few rows its N side: outᵀ = w xᵀ.
    pdl_wait(PDL)
    here = tl.program_id(0) * OUTS
    gate = tl.zeros([OUTS, TILE_ROWS], tl.float32)
    up = tl.zeros([OUTS, TILE_ROWS], tl.float32)
    for k in range(0, width, DEPTH):
        tokens = tl.trans(x.load([0, k]))
        gate = tl.dot(w.load([here, k]), tokens, gate)
        up = tl.dot(w.load([outs + here, k]), tokens, up)
    at, row = here + tl.arange(0, OUTS), tl.arange(0, TILE_ROWS)
    if BIAS:
        gate += tl.load(bias + at, mask=at < outs, other=0.0).to(tl.float32)[:, None]
        up += tl.load(bias + outs + at, mask=at < outs, other=0.0).to(tl.float32)[:, None]
    place, real = row[None, :] * outs + at[:, None], (at < outs)[:, None] & (row < rows)[None, :]
    tl.store(out + place, (gate * tl.sigmoid(gate) * up).to(out.dtype.element_ty), mask=real)


@triton.jit
def _split_k(
    x, w, out, rows, outs, width, split_depth,
    TILE_ROWS: tl.constexpr, OUTS: tl.constexpr, DEPTH: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    pdl_wait(PDL)
    here, split, top = tl.program_id(0) * OUTS, tl.program_id(1), tl.program_id(2) * TILE_ROWS
    total = tl.zeros([OUTS, TILE_ROWS], tl.float32)
    for k in range(split * split_depth, tl.minimum(width, split * split_depth + split_depth), DEPTH):
        total = tl.dot(w.load([here, k]), tl.trans(x.load([top, k])), total)
    at, row = here + tl.arange(0, OUTS), top + tl.arange(0, TILE_ROWS)
    place, real = (split * rows + row)[None, :] * outs + at[:, None], (at < outs)[:, None] & (row < rows)[None, :]
    tl.store(out + place, total, mask=real)


def use_skinny_gemm(x: Tensor, weight: Tensor, rows: int) -> bool:
    """True for at most `rows` rows and a large half-precision layer on Hopper, where this was measured to be faster."""
    few = len(x) <= rows and weight.numel() >= MIN_WEIGHTS and weight.shape[1] % 8 == 0
    half = x.dtype in (torch.bfloat16, torch.float16)
    return few and half and x.is_cuda and torch.cuda.get_device_capability(x.device) == (9, 0)


def swiglu_gemm(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """GEMM with a SwiGLU epilogue, silu(x·gateᵀ)·(x·upᵀ): [R, K], [2N, K] → [R, N], rounded once."""
    (rows, width), outs = x.shape, len(weight) // 2
    out, (tile_rows, step, stages) = x.new_empty(rows, outs), _tile(rows)
    _swiglu_gemm[(triton.cdiv(outs, OUTS),)](
        TensorDescriptor.from_tensor(x, [tile_rows, step]), TensorDescriptor.from_tensor(weight, [OUTS, step]),
        weight if bias is None else bias, out, rows, outs, width, bias is not None, tile_rows, OUTS, step,
        num_warps=4, num_stages=stages, **pdl_options(x),
    )  # fmt: skip
    return out


def split_k(x: Tensor, weight: Tensor) -> Tensor:
    """Split-K `F.linear` of x [R, K] and weight [N, K]: fp32 partial sums [splits, R, N]; the next kernel adds them."""
    (rows, width), outs = x.shape, len(weight)
    tile_rows, step, stages = _tile(rows)
    tiles, tops, blocks = triton.cdiv(outs, OUTS), triton.cdiv(rows, tile_rows), triton.cdiv(width, step)
    split_depth = triton.cdiv(blocks, max(1, min(PROGRAMS // (tiles * tops), blocks)))
    splits = triton.cdiv(blocks, split_depth)
    out = torch.empty(splits, rows, outs, device=x.device)
    _split_k[(tiles, splits, tops)](
        TensorDescriptor.from_tensor(x, [tile_rows, step]), TensorDescriptor.from_tensor(weight, [OUTS, step]),
        out, rows, outs, width, split_depth * step, tile_rows, OUTS, step, num_warps=4, num_stages=stages,
        **pdl_options(x),
    )  # fmt: skip
    return out


def _tile(rows: int) -> tuple[int, int, int]:
    """Rows and depth of a tile, and pipeline stages. Tiles are loaded by TMA, which pads with zeros."""
    tile_rows = min(MAX_TILE_ROWS, max(16, triton.next_power_of_2(rows)))
    return (tile_rows, 128, 4) if tile_rows <= 64 else (tile_rows, 64, 6)
