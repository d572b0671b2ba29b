"""Programmatic dependent launch (PDL): on Hopper and later a kernel is launched while the one before it still runs."""

from __future__ import annotations

from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


@triton.jit
def pdl_wait(PDL: tl.constexpr):
    """Let the next kernel launch, then wait until the writes of all kernels before this one are visible."""
    if PDL:
        gdc_launch_dependents()
        gdc_wait()


def pdl_options(x: Tensor) -> dict[str, bool]:
    """Launch options for kernels on x: `_kernel[grid](…, **pdl_options(x))`; the kernel takes PDL as a constexpr."""
    supported = x.is_cuda and _supports_pdl(x.device)
    return {"PDL": supported, "launch_pdl": supported}


@cache
def _supports_pdl(device: torch.device) -> bool:
    return torch.cuda.get_device_capability(device) >= (9, 0)
