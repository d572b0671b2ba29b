"""Kernels that are launched while the one before them still runs: Hopper and later GPUs do that."""

from __future__ import annotations

from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


@triton.jit
def begin(EARLY: tl.constexpr):
    """Let the next kernel be launched, then wait until all that was written before this one can be read."""
    if EARLY:
        gdc_launch_dependents()
        gdc_wait()


def early(x: Tensor) -> dict[str, bool]:
    """How kernels on x are launched: `_kernel[grid](…, **early(x))`."""
    can = x.is_cuda and _knows_how(x.device)
    return {"EARLY": can, "launch_pdl": can}


@cache
def _knows_how(device: torch.device) -> bool:
    return torch.cuda.get_device_capability(device) >= (9, 0)
