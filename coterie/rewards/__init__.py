"""What an answer is worth: plain functions `(answer, truth) -> float`, and how they are called."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import isfinite
from numbers import Real
from typing import Any

from coterie.rewards.load import load
from coterie.rewards.worker import GraderFailed, GraderTimeout, call

__all__ = ["Grader", "GraderFailed", "GraderTimeout", "grader"]

INLINE = {"exact": "coterie.rewards.exact:exact", "number": "coterie.rewards.number:number"}
IN_A_PROCESS = {"math": "coterie.rewards.math:math"}  # may run for ever on a strange answer


@dataclass(frozen=True)
class Grader:
    """One reward, ready to be called: `await grader(answer, truth)`."""

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)
    deadline: float = 30.0  # seconds for one answer

    async def __call__(self, answer: Any, truth: Any) -> float:
        if self.name in INLINE:
            value = load(INLINE[self.name])(answer, truth, **self.options)
        else:
            function = IN_A_PROCESS.get(self.name, self.name)  # else a user's own
            value = await call(function, (answer, truth), self.options, self.deadline)
        if not isinstance(value, Real) or not isfinite(value):
            raise ValueError(f"reward {self.name} gave {value!r} for {answer!r}; a reward is a finite number")
        return float(value)


def grader(name: str, options: Mapping[str, Any], deadline: float) -> Grader:
    """A builtin reward by name or a user's `path/to/file.py:function`."""
    known = [*INLINE, *IN_A_PROCESS]
    if ":" not in name and name not in known:
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise ValueError(f"reward {name}: there are {', '.join(known)} and path/to/file.py:function{hint}")
    return Grader(name, options, deadline)
