"""Dispatch by device: the Triton kernels on CUDA, the PyTorch reference elsewhere."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any


@cache
def kernels_for(device: str, reference: str, triton: str) -> Any:
    """The Triton module on CUDA, else the PyTorch reference; both define the same functions. CPU builds of PyTorch
    have no Triton."""
    return import_module(triton if device == "cuda" and find_spec("triton") is not None else reference)
