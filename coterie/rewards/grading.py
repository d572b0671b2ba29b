"""Rewards by name, ready to be called."""

from __future__ import annotations

import asyncio
import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite
from numbers import Real
from typing import Any

from coterie.rewards.batching import Asked, Batcher
from coterie.rewards.calling_convention import Convention
from coterie.rewards.fork_pool import OverLimits, call_forked
from coterie.rewards.load import load
from coterie.rewards.worker import START_SECONDS, call
from coterie.types import Task

COMPOSE = "compose"  # the name of several rewards at once
COMPOSER = "coterie.rewards.compose:compose"  # who makes one of them
# At once: they take time in proportion to a text, whatever it is, and a model's text has an end.
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
PROCESSOR_SECONDS = {"math": 2}  # for an answer; one that needs more is wrong
IN_THE_SANDBOX = {"code": "coterie.rewards.code.grader:code"}  # which keeps the deadline
CONVENTION = "coterie.rewards.calling_convention:convention_of"
CHECKS = {"format": "coterie.rewards.format:check", "length": "coterie.rewards.length:check"}  # of their options


@dataclass(frozen=True)
class Grader:
    """One reward, ready to be called: `await grader(answer, truth, task)`."""

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)
    deadline: float = 30.0  # seconds for one answer, or for one call of a batched reward
    batcher: Batcher = field(default_factory=Batcher, init=False, repr=False, compare=False)

    @property
    def needs_sandbox(self) -> bool:
        """True if grading executes what a model wrote; such a reward must not run without the sandbox."""
        return self.name in IN_THE_SANDBOX

    @property
    def compares(self) -> bool:
        """True if it compares with the reference answer; rewards of form and length look at the answer alone."""
        return self.name not in ("format", "length")

    async def __call__(self, answer: Any, truth: Any, task: Task | None = None) -> float:
        if self.name in INLINE:
            value = load(INLINE[self.name])(answer, truth, **self.options)
        elif self.name in IN_THE_SANDBOX:
            value = await self._in_the_sandbox(load(IN_THE_SANDBOX[self.name]), answer, truth)
        elif self.name in IN_A_PROCESS:
            value = await self._forked(IN_A_PROCESS[self.name], answer, truth)
        else:
            value = await self._users_own(answer, truth, task)
        if not isinstance(value, Real) or not isfinite(value):
            raise ValueError(f"reward {self.name} gave {value!r} for {answer!r}; a reward is a finite number")
        return float(value)

    async def _users_own(self, answer: Any, truth: Any, task: Task | None) -> Any:
        taken = await _convention(self.name)
        if taken.takes_task and task is None:
            raise ValueError(f"reward {self.name} takes the task: call the grader with (answer, truth, task)")
        asked = (answer, truth, task) if taken.takes_task else (answer, truth)
        if taken.batched:
            return await self.batcher.score(asked, self._batch)
        return await call(self.name, asked, self.options, self.deadline)

    async def _batch(self, asked: Sequence[Asked]) -> Sequence[Any]:
        """Score many answers in one call, each argument as a list."""
        lists = tuple(list(column) for column in zip(*asked, strict=True))
        values = await call(self.name, lists, self.options, self.deadline)
        if not isinstance(values, Sequence) or len(values) != len(asked):
            what = f"{len(values)} rewards" if isinstance(values, Sequence) else f"{values!r:.80}"
            raise ValueError(f"reward {self.name} gave {what} for {len(asked)} answers; it must give a list of as many")
        return values

    async def _in_the_sandbox(self, function: Callable[..., Any], answer: Any, truth: Any) -> float:
        value: float = await function(answer, truth, **{**self.options, "seconds": self._seconds(function)})
        return value

    async def _forked(self, name: str, answer: Any, truth: Any) -> Any:
        seconds = self._seconds(load(name))
        try:
            return await call_forked(name, (answer, truth), self.options, seconds, PROCESSOR_SECONDS.get(self.name))
        except OverLimits:
            return 0.0

    def _seconds(self, function: Callable[..., Any]) -> float:
        """The deadline: its own option `seconds` where a reward has one, but no longer than that of all rewards."""
        own: float = {**(function.__kwdefaults__ or {}), **self.options}.get("seconds", self.deadline)
        return min(own, self.deadline)


@dataclass(frozen=True)
class Composed(Grader):
    """Several rewards of one answer, each times its weight, added."""

    parts: tuple[tuple[float, Grader], ...] = ()

    @property
    def needs_sandbox(self) -> bool:
        return any(part.needs_sandbox for _, part in self.parts)

    @property
    def compares(self) -> bool:
        return any(part.compares for _, part in self.parts)

    async def __call__(self, answer: Any, truth: Any, task: Task | None = None) -> float:
        worth = await asyncio.gather(*(part(answer, truth, task) for _, part in self.parts))
        return sum(weight * value for (weight, _), value in zip(self.parts, worth, strict=True))


_conventions: dict[str, Convention] = {}


async def _convention(name: str) -> Convention:
    """How a user's function is called. Asked once, in a grading process: the file is not imported here."""
    if name not in _conventions:
        _conventions[name] = await call(CONVENTION, (name,), {}, START_SECONDS)
    return _conventions[name]


def grader(name: str, options: Mapping[str, Any], deadline: float) -> Grader:
    """A builtin reward by name or a user's `path/to/file.py:function`; `compose` makes one of several."""
    if name == COMPOSE:
        composed: Grader = load(COMPOSER)(deadline, **options)
        return composed
    known = [*INLINE, *IN_A_PROCESS, *IN_THE_SANDBOX, COMPOSE]
    if ":" not in name and name not in known:
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise ValueError(f"reward {name}: there are {', '.join(known)} and path/to/file.py:function{hint}")
    if name in CHECKS:
        load(CHECKS[name])(**options)
    return Grader(name, options, deadline)
