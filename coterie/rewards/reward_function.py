"""Load a reward function by name, and read from its signature how it is called.

    (answer, truth)            one answer
    (answer, truth, task)      with the task that it answers
    (answers, truths[, tasks]) lists of the same length, for a function marked by `@reward(batched=True)`

Imports little, because every grading process starts with it.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from coterie.user_code import run_file

MARK = "__coterie_batched__"  # attribute of a function that scores a batch of answers in one call
TASK = ("task", "tasks")  # a third parameter of this name is the task, even if it has a default


@cache
def load(name: str) -> Callable[..., Any]:
    """The function or class that `package.module:name` or `path/to/file.py:name` names."""
    place, _, attribute = name.rpartition(":")
    # The module is named by its whole path, so that a user's math.py does not shadow Python's.
    path = Path(place).resolve()
    module = run_file(path, str(path)) if place.endswith(".py") else importlib.import_module(place)
    if attribute not in vars(module):
        raise ValueError(f"{place} has no {attribute}")
    function: Callable[..., Any] = vars(module)[attribute]
    return function


@dataclass(frozen=True)
class RewardSignature:
    """The positional arguments of a reward function."""

    takes_task: bool
    batched: bool

    @property
    def names(self) -> tuple[str, ...]:
        names = ("answers", "truths", "tasks") if self.batched else ("answer", "truth", "task")
        return names if self.takes_task else names[:2]


def reward_signature(function: Callable[..., Any]) -> RewardSignature:
    """Read a function's parameters and its mark. A third parameter with a default is an option, unless named task."""
    positional = [
        p
        for p in inspect.signature(function).parameters.values()
        if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
    ]
    takes_task = len(positional) > 2 and (positional[2].default is positional[2].empty or positional[2].name in TASK)
    return RewardSignature(takes_task, batched=getattr(function, MARK, False))


def signature_of_name(name: str) -> tuple[bool, bool]:
    """The fields of a function's signature by its name; runs in a worker, so that the parent does not import the user's
    file."""
    signature = reward_signature(load(name))
    return signature.takes_task, signature.batched
