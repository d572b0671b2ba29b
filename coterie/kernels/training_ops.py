"""What a Llama-shaped model does between its products, and what its inputs are to be blamed for.

On CUDA `slopes` does the same in few launches.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from coterie.kernels.matmul import add_product


class Lift(NamedTuple):
    """What an adapter adds to some outputs of some tokens: low·upᵀ."""

    tokens: slice
    outs: slice
    low: Tensor  # [tokens, rank]
    up: Tensor  # [outs, rank]


def add_lifts(out: Tensor, lifts: Sequence[Lift]) -> None:
    """In place."""
    for tokens, outs, low, up in lifts:
        add_product(out[tokens, outs], low, up)


def norm(x: Tensor, weight: Tensor, epsilon: float, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """The RMS norm as `dtype`, and the factor that each row had: [..., N] → [..., N], [..., 1]."""
    wide = _wide(x)
    size = wide.square().mean(dim=-1, keepdim=True).add_(epsilon).rsqrt_()
    return (wide * size).mul_(weight).to(dtype), size


def norm_back(slope: Tensor, x: Tensor, weight: Tensor, size: Tensor, more: Tensor | None = None) -> Tensor:
    """The gradient by x: with y = w·x·s and s = (mean x² + ε)^−½, s·(w·∂y − x·s²·mean(w·∂y·x)); and `more`."""
    wide, by_direction = _wide(x), _wide(slope) * weight
    along = (by_direction * wide).mean(dim=-1, keepdim=True).mul_(size).mul_(size)
    by_x = by_direction.addcmul_(wide, along, value=-1).mul_(size)
    return (by_x if more is None else by_x.add_(more)).to(x.dtype)


def add_norm(x: Tensor, y: Tensor, weight: Tensor, epsilon: float, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """x + y, and its norm as of `norm`."""
    total = x + y
    return total, *norm(total, weight, epsilon, dtype)


def gated(both: Tensor, lifts: Sequence[Lift], dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """SiLU of the first half times the second, [T, 2N] → [T, N], when adapters have added what is theirs; and both
    halves, which may be changed in place. Rounded only at the end."""
    add_lifts(both, lifts)
    gate, up = (_wide(half) for half in both.chunk(2, dim=1))
    return F.silu(gate).mul_(up).to(dtype), both.to(dtype)


def gated_back(slope: Tensor, both: Tensor) -> Tensor:
    """The gradient by both halves."""
    gate, up = (_wide(half) for half in both.chunk(2, dim=1))
    share, wide = gate.sigmoid(), _wide(slope)
    by_gate = (1 - share).mul_(gate).add_(1).mul_(share).mul_(up).mul_(wide)
    return torch.cat([by_gate, share.mul_(gate).mul_(wide)], dim=1).to(both.dtype)


def turned(x: Tensor, cos: Tensor, sin: Tensor, back: bool = False) -> Tensor:
    """Rotary positions, x [T, H, D], cos and sin [T, D]; `back` turns the other way, as the gradient does."""
    half = x.shape[-1] // 2
    wide = _wide(x)
    other = torch.cat([-wide[..., half:], wide[..., :half]], dim=-1)
    return (wide * cos[:, None]).addcmul_(other, sin[:, None], value=-1 if back else 1).to(x.dtype)


def _wide(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))
