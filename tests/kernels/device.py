"""The device for kernel tests: a GPU, or else Triton's interpreter (see conftest), which has no bfloat16 matmul."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from coterie.models.base import Base
from tests.models import tiny_model, tiny_tokenizer
from tests.oracle import random_adapter

ON_GPU = torch.cuda.is_available()
DEVICE, HALF = ("cuda", torch.bfloat16) if ON_GPU else ("cpu", torch.float16)
needs_triton = pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed")
# Architectures that the CUDA graph decoder supports.
SHAPES: dict[str, dict[str, int]] = {"llama": {"num_hidden_layers": 2}, "qwen2": {}, "qwen3": {"head_dim": 32}}


def team(kind: str, folder: Path, device: str, dtype: torch.dtype = torch.float32) -> Base:
    tiny_model(kind, **SHAPES[kind]).save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    base = Base(folder, device, dtype)
    random_adapter(base, "a", 4, ("q_proj", "v_proj", "down_proj"), 1)
    random_adapter(base, "b", 2, ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"), 2)
    random_adapter(base, "c", 8, ("o_proj", "up_proj"), 3)
    return base
