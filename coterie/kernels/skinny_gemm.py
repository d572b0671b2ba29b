"""Products of a few rows with large weights on CUDA, at the speed of memory: the largest of a captured step."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from coterie.kernels.pdl_launch import begin, early

GATE_ROWS, SUM_ROWS = 64, 256  # beyond them, and for smaller layers, cuBLAS is as fast
LARGE = 1 << 22  # weights
OUTS, HIGHEST = 64, 128  # outputs and rows of one program, at most
ENOUGH = 132  # programs: one for each processor of the GPU


@triton.jit
def _gate_product(
    x, w, bias, out, rows, outs, width,
    BIAS: tl.constexpr, HIGH: tl.constexpr, OUTS: tl.constexpr, WIDTH: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    # Weights are the tall side of a tensor core's tile, rows its short side: outᵀ = w xᵀ.
    begin(EARLY)
    here = tl.program_id(0) * OUTS
    gate = tl.zeros([OUTS, HIGH], tl.float32)
    up = tl.zeros([OUTS, HIGH], tl.float32)
    for k in range(0, width, WIDTH):
        tokens = tl.trans(x.load([0, k]))
        gate = tl.dot(w.load([here, k]), tokens, gate)
        up = tl.dot(w.load([outs + here, k]), tokens, up)
    at, row = here + tl.arange(0, OUTS), tl.arange(0, HIGH)
    if BIAS:
        gate += tl.load(bias + at, mask=at < outs, other=0.0).to(tl.float32)[:, None]
        up += tl.load(bias + outs + at, mask=at < outs, other=0.0).to(tl.float32)[:, None]
    place, real = row[None, :] * outs + at[:, None], (at < outs)[:, None] & (row < rows)[None, :]
    tl.store(out + place, (gate * tl.sigmoid(gate) * up).to(out.dtype.element_ty), mask=real)


@triton.jit
def _in_parts(
    x, w, out, rows, outs, width, share,
    HIGH: tl.constexpr, OUTS: tl.constexpr, WIDTH: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    begin(EARLY)
    here, part, top = tl.program_id(0) * OUTS, tl.program_id(1), tl.program_id(2) * HIGH
    total = tl.zeros([OUTS, HIGH], tl.float32)
    for k in range(part * share, tl.minimum(width, part * share + share), WIDTH):
        total = tl.dot(w.load([here, k]), tl.trans(x.load([top, k])), total)
    at, row = here + tl.arange(0, OUTS), top + tl.arange(0, HIGH)
    place, real = (part * rows + row)[None, :] * outs + at[:, None], (at < outs)[:, None] & (row < rows)[None, :]
    tl.store(out + place, total, mask=real)


def fits(x: Tensor, weight: Tensor, rows: int) -> bool:
    """Few rows and a large layer in half precision, on the kind of GPU where this was seen to be the faster way."""
    few = len(x) <= rows and weight.numel() >= LARGE and weight.shape[1] % 8 == 0
    half = x.dtype in (torch.bfloat16, torch.float16)
    return few and half and x.is_cuda and torch.cuda.get_device_capability(x.device) == (9, 0)


def gate_product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """SiLU of what the first half of the weights says times what the second says: [R, K] × [2N, K] → [R, N]."""
    (rows, width), outs = x.shape, len(weight) // 2
    out, (high, step, stages) = x.new_empty(rows, outs), _block(rows)
    _gate_product[(triton.cdiv(outs, OUTS),)](
        TensorDescriptor.from_tensor(x, [high, step]), TensorDescriptor.from_tensor(weight, [OUTS, step]),
        weight if bias is None else bias, out, rows, outs, width, bias is not None, high, OUTS, step,
        num_warps=4, num_stages=stages, **early(x),
    )  # fmt: skip
    return out


def in_parts(x: Tensor, weight: Tensor) -> Tensor:
    """`F.linear` of x [R, K] and weight [N, K] in parts that are still to be added up: → [parts, R, N]."""
    (rows, width), outs = x.shape, len(weight)
    high, step, stages = _block(rows)
    tiles, tops, blocks = triton.cdiv(outs, OUTS), triton.cdiv(rows, high), triton.cdiv(width, step)
    share = triton.cdiv(blocks, max(1, min(ENOUGH // (tiles * tops), blocks)))
    parts = triton.cdiv(blocks, share)
    out = torch.empty(parts, rows, outs, device=x.device)
    _in_parts[(tiles, parts, tops)](
        TensorDescriptor.from_tensor(x, [high, step]), TensorDescriptor.from_tensor(weight, [OUTS, step]),
        out, rows, outs, width, share * step, high, OUTS, step, num_warps=4, num_stages=stages, **early(x),
    )  # fmt: skip
    return out


def _block(rows: int) -> tuple[int, int, int]:
    """Rows of a block, how wide it is, and how many are on their way: the GPU itself fetches them, zeros beyond."""
    high = min(HIGHEST, max(16, triton.next_power_of_2(rows)))
    return (high, 128, 4) if high <= 64 else (high, 64, 6)
