"""How a reward function is called: with or without the task, for one answer or for a batch of them.

    (answer, truth)            one answer
    (answer, truth, task)      with the task that it answers
    (answers, truths[, tasks]) lists of the same length, for a function marked by `@reward(batched=True)`

Light on purpose: the grading processes start with it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from coterie.rewards.load import load

MARK = "__coterie_batched__"  # the attribute of a function that scores a batch of answers in one call
TASK = ("task", "tasks")  # a third parameter of this name is the task, even if it has a default


@dataclass(frozen=True)
class Convention:
    """What a reward function takes."""

    takes_task: bool
    batched: bool

    @property
    def names(self) -> tuple[str, ...]:
        """Its positional arguments in words."""
        names = ("answers", "truths", "tasks") if self.batched else ("answer", "truth", "task")
        return names if self.takes_task else names[:2]


def convention(function: Callable[..., Any]) -> Convention:
    """Read off a function's signature and mark. A third parameter with a default is the user's own, as with two."""
    positional = [
        p
        for p in inspect.signature(function).parameters.values()
        if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
    ]
    takes_task = len(positional) > 2 and (positional[2].default is positional[2].empty or positional[2].name in TASK)
    return Convention(takes_task, batched=getattr(function, MARK, False))


def convention_of(name: str) -> Convention:
    """The same by the function's name, for a process that has not imported the user's file."""
    return convention(load(name))
