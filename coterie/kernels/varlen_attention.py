"""Packed varlen attention on CUDA: PyTorch's flash attention kernel over rows of any length, no padding, no mask."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

MAX_HEAD_DIM = 256  # of the flash kernel


class VarlenRows(NamedTuple):
    """Packed rows. A row has as many keys as queries, or more: then its queries are the last of its tokens."""

    cu_seqlens_q: Tensor  # [R + 1] int32, cumulative lengths from 0
    cu_seqlens_k: Tensor  # [R + 1]
    max_seqlen_q: int
    max_seqlen_k: int
    key_index: Tensor | None  # [Σ keys] into the stream, where rows share a prefix; None: keys are the queries' tokens

    def attend(self, q: Tensor, k: Tensor, v: Tensor, scale: float, window: int | None) -> Tensor:
        """q [Hq, T, D], k and v [Hkv, T, D] → [T, Hq, D]."""
        q, k, v = (x.transpose(0, 1).to(compute_dtype(x)) for x in (q, k, v))
        if self.key_index is not None:
            k, v = _GatherTokens.apply(k, self.key_index), _GatherTokens.apply(v, self.key_index)
        return flash_attention(q, k, v, self, scale, window)


def compute_dtype(x: Tensor) -> torch.dtype:
    """The autocast dtype where autocast is on, else x's own. The flash kernel does not know about autocast."""
    kind = x.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x.dtype


def is_supported(q: Tensor, v: Tensor) -> bool:
    """True if the flash kernel can run: CUDA, half precision, head dimension a multiple of 8 and at most 256."""
    width = q.shape[-1]
    fits = width % 8 == 0 and width <= MAX_HEAD_DIM and v.shape[-1] == width
    return fits and q.is_cuda and compute_dtype(q) in (torch.bfloat16, torch.float16)


def flash_attention(q: Tensor, k: Tensor, v: Tensor, rows: VarlenRows, scale: float, window: int | None) -> Tensor:
    """Causal attention, aligned to the end of a row's keys: q [T, Hq, D], k and v [Σ keys, Hkv, D] → [T, Hq, D].

    Not `torch.nn.attention.varlen`, which calls the same kernel: it supports grouped-query attention only from
    PyTorch 2.12 on, and costs the host a custom operator per layer.
    """
    left = -1 if window is None else window - 1  # a window counts the token itself
    return torch.ops.aten._flash_attention_forward(
        q, k, v, rows.cu_seqlens_q, rows.cu_seqlens_k, rows.max_seqlen_q, rows.max_seqlen_k, 0.0, True, False,
        scale=scale, window_size_left=left, window_size_right=-1 if window is None else 0,
    )[0]  # fmt: skip


class _GatherTokens(torch.autograd.Function):
    """Gather tokens, some more than once; the gradients of the copies are summed in fp32."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, index: Tensor) -> Tensor:
        ctx.save_for_backward(index)
        ctx.length = len(x)
        return x.index_select(0, index)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (index,) = ctx.saved_tensors
        wide = torch.promote_types(grad.dtype, torch.float32)
        total = torch.zeros(ctx.length, *grad.shape[1:], dtype=wide, device=grad.device)
        return total.index_add_(0, index, grad.to(wide)).to(grad.dtype), None
