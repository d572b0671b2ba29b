"""Coterie fine-tunes teams of language models with reinforcement learning.

The public names are imported on first use: `import coterie` has no side effects and does not import torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from coterie.algorithms.base import Algorithm
    from coterie.api import AgentTrainer, Trained, train
    from coterie.credit.base import Credit
    from coterie.decorators import env, reward, tool, workflow
    from coterie.types import Episode, Message, Outcome, Sampling, Task, Team, Turn

__version__ = "0.2.0"
__all__ = [
    "AgentTrainer", "Algorithm", "Credit", "Episode", "Message", "Outcome", "Sampling", "Task", "Team", "Trained",
    "Turn", "env", "reward", "tool", "train", "workflow",
]  # fmt: skip

MODULES = {
    "coterie.algorithms.base": ("Algorithm",),
    "coterie.api": ("AgentTrainer", "Trained", "train"),
    "coterie.credit.base": ("Credit",),
    "coterie.decorators": ("env", "reward", "tool", "workflow"),
    "coterie.types": ("Episode", "Message", "Outcome", "Sampling", "Task", "Team", "Turn"),
}
MODULE_OF = {name: module for module, names in MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(MODULE_OF[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
