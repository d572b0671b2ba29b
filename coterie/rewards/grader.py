"""Rewards by name: `make_grader` gives a callable that runs a reward inline, in a killable process or in the sandbox.

`compose` is the weighted sum of several rewards.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from coterie.errors import LARGEST_NUMBER, BadAnswer, BadReward, did_you_mean
from coterie.rewards.batching import Arguments, Batcher
from coterie.rewards.grader_pool import START_SECONDS, OverLimits, call, call_forked
from coterie.rewards.reward_function import RewardSignature, load
from coterie.types import Task, Weighted

COMPOSE = "compose"  # several rewards at once
# Rewards that a model gives: name → the function that makes the grader.
BY_MODEL = {"verifier": "coterie.rewards.verifier:verifier", "judge": "coterie.rewards.judge:judge"}
# Called in this process: linear in the length of the text.
INLINE = {"exact": "coterie.rewards.exact_match:exact", "number": "coterie.rewards.exact_match:number"}
# Forked: may take arbitrarily long on an adversarial answer, or under a user's own pattern.
FORKED = {
    "math": "coterie.rewards.math:math",
    "qa": "coterie.rewards.qa:qa",
    "nli": "coterie.rewards.nli:nli",
    "choice": "coterie.rewards.choice:choice",
    "format": "coterie.rewards.format:format",
    "length": "coterie.rewards.length:length",
}
CPU_SECONDS = {"math": 2}  # CPU time for one answer; an answer that needs more is wrong
SANDBOXED = {"code": "coterie.rewards.code.grader:code"}  # enforces the deadline itself
ADAPTERS = {"row_function": "coterie.compat.rllm.rewards:row_function"}  # call a user's function with another signature
TEXT_GRADERS = {*INLINE, *FORKED, *SANDBOXED}
FORMS = "return a text, {role: text} with roles that spoke, or an Outcome"
SIGNATURE_OF = "coterie.rewards.reward_function:signature_of_name"
CHECKS = {"format": "coterie.rewards.format:check", "length": "coterie.rewards.length:check"}  # validate options


@dataclass(frozen=True)
class Grader:
    """One reward with its options: `await grader(answer, truth, task)`."""

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)
    deadline: float = 30.0  # seconds for one answer, or for one call of a batched reward
    batcher: Batcher = field(default_factory=Batcher, init=False, repr=False, compare=False)

    @property
    def needs_sandbox(self) -> bool:
        """True if grading executes code that a model wrote, which must only run in the sandbox."""
        return self.name in SANDBOXED

    @property
    def compares(self) -> bool:
        """True if it compares with the reference answer; format and length look at the answer alone."""
        return self.name not in ("format", "length")

    @property
    def verifier(self) -> Any:
        """The `VerifierGrader` in it: itself, or a part of `compose`; None if there is none."""
        return None

    async def __call__(self, answer: Any, truth: Any, task: Task | None = None) -> float:
        if self.name in TEXT_GRADERS and isinstance(answer, Mapping | list | tuple | None):
            raise BadAnswer(f"reward {self.name} grades a text, and the workflow returned {answer!r:.80}; {FORMS}")
        if self.name in INLINE:
            value = load(INLINE[self.name])(answer, truth, **self.options)
        elif self.name in SANDBOXED:
            value = await self._sandboxed(load(SANDBOXED[self.name]), answer, truth)
        elif self.name in FORKED:
            value = await self._forked(FORKED[self.name], answer, truth)
        else:
            value = await self._user_function(answer, truth, task)
        if not isinstance(value, int | float) or not abs(value) <= LARGEST_NUMBER:  # NaN is not
            right = f"a reward must be a finite number, at most {LARGEST_NUMBER:g} in size"
            raise BadReward(f"reward {self.name} gave {value!r} for {answer!r}; {right}")
        return float(value)

    async def _user_function(self, answer: Any, truth: Any, task: Task | None) -> Any:
        name = ADAPTERS.get(self.name, self.name)
        signature = await _signature(name)
        if signature.takes_task and task is None:
            raise ValueError(f"reward {self.name} takes the task: call the grader with (answer, truth, task)")
        arguments = (answer, truth, task) if signature.takes_task else (answer, truth)
        if signature.batched:
            return await self.batcher.score(arguments, self._batch)
        return await call(name, arguments, self.options, self.deadline)

    async def _batch(self, answers: Sequence[Arguments]) -> Sequence[Any]:
        """Score many answers in one call; each argument is a list."""
        lists = tuple(list(column) for column in zip(*answers, strict=True))
        values = await call(self.name, lists, self.options, self.deadline)
        if not isinstance(values, list) or len(values) != len(answers):
            what = f"{len(values)} rewards" if isinstance(values, list) else f"{values!r:.80}"
            raise BadReward(f"reward {self.name} gave {what} for {len(answers)} answers; it must give one per answer")
        return values

    async def _sandboxed(self, function: Callable[..., Any], answer: Any, truth: Any) -> float:
        value: float = await function(answer, truth, **{**self.options, "seconds": self._seconds(function)})
        return value

    async def _forked(self, name: str, answer: Any, truth: Any) -> Any:
        seconds = self._seconds(load(name))
        try:
            return await call_forked(name, (answer, truth), self.options, seconds, CPU_SECONDS.get(self.name))
        except OverLimits:
            return 0.0

    def _seconds(self, function: Callable[..., Any]) -> float:
        """The deadline: the reward's own option `seconds` where it has one, at most `deadline`."""
        own: float = {**(function.__kwdefaults__ or {}), **self.options}.get("seconds", self.deadline)
        return min(own, self.deadline)


@dataclass(frozen=True)
class Composed(Grader):
    """The weighted sum of several rewards."""

    parts: tuple[tuple[float, Grader], ...] = ()

    @property
    def needs_sandbox(self) -> bool:
        return any(part.needs_sandbox for _, part in self.parts)

    @property
    def compares(self) -> bool:
        return any(part.compares for _, part in self.parts)

    @property
    def verifier(self) -> Any:
        return next((part.verifier for _, part in self.parts if part.verifier is not None), None)

    async def __call__(self, answer: Any, truth: Any, task: Task | None = None) -> float:
        rewards = await asyncio.gather(*(part(answer, truth, task) for _, part in self.parts))
        return sum(weight * value for (weight, _), value in zip(self.parts, rewards, strict=True))


_signatures: dict[str, RewardSignature] = {}


async def _signature(name: str) -> RewardSignature:
    """The signature of a user's function, read once in a worker: this process does not import the user's file."""
    if name not in _signatures:
        _signatures[name] = RewardSignature(*await call(SIGNATURE_OF, (name,), {}, START_SECONDS))
    return _signatures[name]


def make_grader(name: str, options: Mapping[str, Any], deadline: float) -> Grader:
    """A builtin reward by name, a user's `path/to/file.py:function`, or `compose`."""
    if name == COMPOSE:
        return compose(deadline, **options)
    if name in BY_MODEL:
        grader: Grader = load(BY_MODEL[name])(deadline, **options)
        return grader
    known = [*INLINE, *FORKED, *SANDBOXED, *ADAPTERS, *BY_MODEL, COMPOSE]
    if ":" not in name and name not in known:
        hint = did_you_mean(name, known)
        raise ValueError(f"reward {name}: there are {', '.join(known)} and path/to/file.py:function{hint}")
    if name in CHECKS:
        load(CHECKS[name])(**options)
    return Grader(name, options, deadline)


def compose(
    deadline: float,
    *,
    parts: tuple[Weighted, ...],  # rewards with their options and a `weight` each, 1 by default
) -> Composed:
    """The weighted sum of several rewards; `deadline` applies to each.

    reward: {name: compose, parts: [{name: math, weight: 0.9}, {name: format, pattern: "^<think>", weight: 0.1}]}
    """
    if not parts:
        raise ValueError("reward compose: parts is empty; list rewards with their weights")
    return Composed(COMPOSE, {}, deadline, tuple(_part(index, part, deadline) for index, part in enumerate(parts)))


def _part(index: int, part: Weighted, deadline: float) -> tuple[float, Grader]:
    if part.name == "native":
        raise ValueError(f"reward compose: parts.{index}: native, an environment's own score, cannot be a part")
    try:
        return part.weight, make_grader(part.name, part.options, deadline)
    except ValueError as error:
        raise ValueError(f"reward compose: parts.{index}: {error}") from None
