"""RMSNorm, SwiGLU and RoPE of Llama-shaped models, forward and hand-written backward: the PyTorch reference.

`training_ops_triton` has the same functions as fused CUDA kernels; `models.trainable_forward` wraps them for autograd.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from coterie.kernels.matmul import LoraDelta, add_lora_deltas_


def rms_norm(x: Tensor, weight: Tensor, eps: float, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """RMSNorm as `dtype`, and each row's reciprocal RMS for the backward: [..., N] → [..., N], [..., 1]."""
    wide = _fp32(x)
    rstd = wide.square().mean(dim=-1, keepdim=True).add_(eps).rsqrt_()
    return (wide * rstd).mul_(weight).to(dtype), rstd


def rms_norm_backward(grad: Tensor, x: Tensor, weight: Tensor, rstd: Tensor, add: Tensor | None = None) -> Tensor:
    """Gradient of x: for y = w·x·s, s = (mean x² + ε)^−½ it is s·(w·∂y − x·s²·mean(w·∂y·x)); plus `add`, if given."""
    wide, weighted = _fp32(x), _fp32(grad) * weight
    projection = (weighted * wide).mean(dim=-1, keepdim=True).mul_(rstd).mul_(rstd)
    grad_x = weighted.addcmul_(wide, projection, value=-1).mul_(rstd)
    return (grad_x if add is None else grad_x.add_(add)).to(x.dtype)


def add_rms_norm(x: Tensor, y: Tensor, weight: Tensor, eps: float, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """x + y, and what `rms_norm` returns for it."""
    total = x + y
    return total, *rms_norm(total, weight, eps, dtype)


def swiglu(gate_up: Tensor, deltas: Sequence[LoraDelta], dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """SwiGLU of gate_up [T, 2N] after adding LoRA deltas: silu(gate)·up [T, N] and the summed gate_up, as `dtype`.

    The input may be changed in place. Both results are rounded once, at the end.
    """
    add_lora_deltas_(gate_up, deltas)
    gate, up = (_fp32(half) for half in gate_up.chunk(2, dim=1))
    return F.silu(gate).mul_(up).to(dtype), gate_up.to(dtype)


def swiglu_backward(grad: Tensor, gate_up: Tensor) -> Tensor:
    """Gradient of gate_up: [T, N], [T, 2N] → [T, 2N]."""
    gate, up = (_fp32(half) for half in gate_up.chunk(2, dim=1))
    sigmoid, wide = gate.sigmoid(), _fp32(grad)
    grad_gate = (1 - sigmoid).mul_(gate).add_(1).mul_(sigmoid).mul_(up).mul_(wide)
    return torch.cat([grad_gate, sigmoid.mul_(gate).mul_(wide)], dim=1).to(gate_up.dtype)


def rope(x: Tensor, cos: Tensor, sin: Tensor, inverse: bool = False) -> Tensor:
    """Rotary positions: x [T, H, D], cos and sin [T, D]; `inverse` rotates back, which is the backward."""
    half = x.shape[-1] // 2
    wide = _fp32(x)
    rotated = torch.cat([-wide[..., half:], wide[..., :half]], dim=-1)
    return (wide * cos[:, None]).addcmul_(rotated, sin[:, None], value=-1 if inverse else 1).to(x.dtype)


def _fp32(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))
