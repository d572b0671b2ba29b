"""Attention over ragged rows without padding and without masks: on CUDA, by PyTorch's own flash kernel."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

WIDEST = 256  # head width that the kernel knows


class Ragged(NamedTuple):
    """Rows one after the other. A row has as many keys as queries, or more: then the queries are its last tokens."""

    q_ends: Tensor  # [R + 1] int32: where rows end, from 0
    k_ends: Tensor  # [R + 1]
    longest_q: int
    longest_k: int
    keys: Tensor | None  # [Σ keys] into the stream; None where each row's keys are its queries' own

    def attend(self, q: Tensor, k: Tensor, v: Tensor, scale: float, window: int | None) -> Tensor:
        """q [Hq, T, D], k and v [Hkv, T, D] → [T, Hq, D]."""
        q, k, v = (x.transpose(0, 1).to(compute_dtype(x)) for x in (q, k, v))
        if self.keys is not None:
            k, v = _Copies.apply(k, self.keys), _Copies.apply(v, self.keys)
        return flash(q, k, v, self, scale, window)


def compute_dtype(x: Tensor) -> torch.dtype:
    """What it is computed in. The kernel itself does not know about autocast."""
    kind = x.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x.dtype


def serves(q: Tensor, v: Tensor) -> bool:
    """Whether the kernel can do it."""
    width = q.shape[-1]
    fits = width % 8 == 0 and width <= WIDEST and v.shape[-1] == width
    return fits and q.is_cuda and compute_dtype(q) in (torch.bfloat16, torch.float16)


def flash(q: Tensor, k: Tensor, v: Tensor, rows: Ragged, scale: float, window: int | None) -> Tensor:
    """Causal, counted from the end of a row's keys. Not by `torch.nn.attention.varlen`, which calls the same kernel:
    it takes fewer heads of keys than of queries only from 2.12 on, and costs Python a custom operator per layer."""
    left = -1 if window is None else window - 1  # a window counts the token itself
    return torch.ops.aten._flash_attention_forward(
        q, k, v, rows.q_ends, rows.k_ends, rows.longest_q, rows.longest_k, 0.0, True, False,
        scale=scale, window_size_left=left, window_size_right=-1 if window is None else 0,
    )[0]  # fmt: skip


class _Copies(torch.autograd.Function):
    """Picks tokens, some of them more than once; the gradients of the copies are added in full precision."""

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
