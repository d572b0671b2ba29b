"""Rewards by name, ready to be called."""

from __future__ import annotations

import asyncio
import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite
from numbers import Real
from typing import Any, Protocol

from coterie.rewards.load import load
from coterie.rewards.worker import call

COMPOSE = "compose"  # the name of several rewards at once
INLINE = {"exact": "coterie.rewards.exact:exact", "number": "coterie.rewards.number:number"}
# May run for ever on a strange answer, or under a user's own pattern; or may not, but who knows.
IN_A_PROCESS = {
    "math": "coterie.rewards.math:math",
    "qa": "coterie.rewards.qa:qa",
    "nli": "coterie.rewards.nli:nli",
    "choice": "coterie.rewards.choice:choice",
    "format": "coterie.rewards.format:format",
    "length": "coterie.rewards.length:length",
}
WITH_A_DEADLINE = {"code": "coterie.rewards.code:code"}  # of its own: waits for programs in the sandbox
CHECKS = {"format": "coterie.rewards.format:check", "length": "coterie.rewards.length:check"}  # of their options


@dataclass(frozen=True)
class Grader:
    """One reward, ready to be called: `await grader(answer, truth)`."""

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)
    deadline: float = 30.0  # seconds for one answer

    async def __call__(self, answer: Any, truth: Any) -> float:
        if self.name in INLINE:
            value = load(INLINE[self.name])(answer, truth, **self.options)
        elif self.name in WITH_A_DEADLINE:
            value = await load(WITH_A_DEADLINE[self.name])(answer, truth, **self.options)
        else:
            function = IN_A_PROCESS.get(self.name, self.name)  # else a user's own
            value = await call(function, (answer, truth), self.options, self.deadline)
        if not isinstance(value, Real) or not isfinite(value):
            raise ValueError(f"reward {self.name} gave {value!r} for {answer!r}; a reward is a finite number")
        return float(value)


@dataclass(frozen=True)
class Composed(Grader):
    """Several rewards of one answer, each times its weight, added."""

    parts: tuple[tuple[float, Grader], ...] = ()

    async def __call__(self, answer: Any, truth: Any) -> float:
        worth = await asyncio.gather(*(part(answer, truth) for _, part in self.parts))
        return sum(weight * value for (weight, _), value in zip(self.parts, worth, strict=True))


class Share(Protocol):
    """One part of a composed reward, as a config gives it."""

    @property
    def name(self) -> str: ...
    @property
    def options(self) -> Mapping[str, Any]: ...
    @property
    def weight(self) -> float: ...


def grader(name: str, options: Mapping[str, Any], deadline: float) -> Grader:
    """A builtin reward by name or a user's `path/to/file.py:function`; `compose` makes one of several."""
    if name == COMPOSE:
        return _composed(options["parts"], deadline)
    known = [*INLINE, *IN_A_PROCESS, *WITH_A_DEADLINE, COMPOSE]
    if ":" not in name and name not in known:
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise ValueError(f"reward {name}: there are {', '.join(known)} and path/to/file.py:function{hint}")
    if name in CHECKS:
        load(CHECKS[name])(**options)
    return Grader(name, options, deadline)


def _composed(parts: Sequence[Share], deadline: float) -> Composed:
    if not parts:
        raise ValueError("reward compose: parts is empty; it wants rewards with their weights")
    return Composed(COMPOSE, {}, deadline, tuple(_part(i, part, deadline) for i, part in enumerate(parts)))


def _part(place: int, part: Share, deadline: float) -> tuple[float, Grader]:
    if part.name == "native":
        raise ValueError(f"reward compose: parts.{place}: an environment's own score cannot be a part of another")
    try:
        return part.weight, grader(part.name, part.options, deadline)
    except ValueError as error:
        raise ValueError(f"reward compose: parts.{place}: {error}") from None
