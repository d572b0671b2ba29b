"""The product of a few rows with the weights of gate and up on CUDA, and the gate at once: a step's largest product,
at the speed of memory."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

ROWS = 64  # beyond them, and for narrower layers, cuBLAS is as fast
NARROW = 4096
OUTS, WIDTH = 64, 64  # of a block of weights; two programs then share a processor


@triton.jit
def _gate_product(
    x, w, bias, out, rows, outs, width,
    BIAS: tl.constexpr, HIGH: tl.constexpr, OUTS: tl.constexpr, WIDTH: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    # Weights are the tall side of a tensor core's tile, rows its short side: outᵀ = w xᵀ.
    at, row, column = tl.program_id(0) * OUTS + tl.arange(0, OUTS), tl.arange(0, HIGH), tl.arange(0, WIDTH)
    read = x + tl.minimum(row, rows - 1)[:, None] * width + column[None, :]
    first = w + tl.minimum(at, outs - 1)[:, None].to(tl.int64) * width + column[None, :]
    second = first + outs.to(tl.int64) * width
    gate = tl.zeros([OUTS, HIGH], tl.float32)
    up = tl.zeros([OUTS, HIGH], tl.float32)
    for k in range(0, width, WIDTH):
        if EVEN:
            tokens, gates, ups = tl.load(read + k), tl.load(first + k), tl.load(second + k)
        else:
            real = (k + column < width)[None, :]
            tokens = tl.load(read + k, mask=real, other=0.0)
            gates, ups = tl.load(first + k, mask=real, other=0.0), tl.load(second + k, mask=real, other=0.0)
        gate = tl.dot(gates, tl.trans(tokens), gate)
        up = tl.dot(ups, tl.trans(tokens), up)
    if BIAS:
        gate += tl.load(bias + at, mask=at < outs, other=0.0).to(tl.float32)[:, None]
        up += tl.load(bias + outs + at, mask=at < outs, other=0.0).to(tl.float32)[:, None]
    kind: tl.constexpr = out.dtype.element_ty
    wide = gate.to(kind).to(tl.float32)
    place, real = row[None, :] * outs + at[:, None], (at < outs)[:, None] & (row < rows)[None, :]
    tl.store(out + place, (wide * tl.sigmoid(wide)).to(kind) * up.to(kind), mask=real)


def fits(x: Tensor, weight: Tensor) -> bool:
    """Few rows and a large layer in half precision, on the kind of GPU where this was seen to be the faster way."""
    small = len(x) <= ROWS and len(weight) >= 2 * NARROW and x.dtype in (torch.bfloat16, torch.float16)
    return small and x.is_cuda and torch.cuda.get_device_capability(x.device) == (9, 0)


def gate_product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """SiLU of what the first half of the weights says times what the second says: [R, K] × [2N, K] → [R, N]."""
    (rows, width), outs = x.shape, len(weight) // 2
    out, high = x.new_empty(rows, outs), max(16, triton.next_power_of_2(rows))
    _gate_product[(triton.cdiv(outs, OUTS),)](
        x, weight, weight if bias is None else bias, out, rows, outs, width, bias is not None, high, OUTS, WIDTH,
        width % WIDTH == 0, num_warps=4, num_stages=4,
    )  # fmt: skip
    return out
