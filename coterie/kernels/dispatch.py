"""Formulas in PyTorch, or kernels that do the same on CUDA."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any


@cache
def kernels_for(device: str, plain: str, kernels: str) -> Any:
    """The module that serves this kind of device; both have the same functions. Kernels need Triton, which only CUDA
    builds of PyTorch bring."""
    return import_module(kernels if device == "cuda" and find_spec("triton") is not None else plain)
