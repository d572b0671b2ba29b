"""Coterie fine-tunes teams of language models with reinforcement learning."""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from coterie.api import AgentTrainer
    from coterie.decorators import env, reward, tool, workflow

__version__ = "0.2.0"
__all__ = ["AgentTrainer", "env", "reward", "tool", "workflow"]

# Where each name comes from: imported when it is asked for, so that small processes stay small.
PLACES = {
    "AgentTrainer": "coterie.api",
    "env": "coterie.decorators",
    "reward": "coterie.decorators",
    "tool": "coterie.decorators",
    "workflow": "coterie.decorators",
}

# Steps of ever other lengths leave holes in a GPU's memory: after 100 of them PyTorch held a sixth more than they ever
# needed at once, and so it holds a tenth. PyTorch reads this when it first asks a GPU for memory.
if sys.platform == "linux" and "PYTORCH_CUDA_ALLOC_CONF" not in os.environ:
    os.environ.setdefault("PYTORCH_ALLOC_CONF", "expandable_segments:True")


def __getattr__(name: str) -> Any:
    if name not in PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(PLACES[name]), name)
