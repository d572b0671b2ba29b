"""Programming tasks with unit tests: MBPP, HumanEval, DeepCoder."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from coterie.data.deepcoder import DEEPCODER
from coterie.data.humaneval import HUMANEVAL
from coterie.data.mbpp import MBPP
from coterie.envs.dataset_env import DatasetEnv
from coterie.rewards.code.grader import SECONDS, TEST_SECONDS, Failure, Verdict, code_in, run_tests
from coterie.rewards.code.test_formats import read_tests
from coterie.types import Task

Result = TypeVar("Result")
NO_PROGRAM = "there is no program in the answer; give it in a ```python block"


class CodeResult(NamedTuple):
    """The test results of one program."""

    visible: Verdict  # on the tests that a team may see
    score: float  # the fraction of all tests that it passes, for its reward


class CodeWorld:
    """Lets a workflow test programs, any number of times; extracts the program as the grader does.

    A team sees the results of the first half of the tests, at least of one. The others are held out, so that a
    program cannot be fitted to them.
    """

    def __init__(self, tests: Any) -> None:
        self.tests = read_tests(tests)
        self.visible = (len(self.tests.inputs) + 1) // 2

    async def test(self, text: str, *, test_seconds: float = TEST_SECONDS, seconds: float = SECONDS) -> CodeResult:
        """Run all tests on the program in a text, with deadlines of one test and of all."""
        program = code_in(text)
        if program is None:
            return CodeResult(Verdict(0, self.visible, (Failure(0, "", "a program", NO_PROGRAM),)), 0.0)
        verdict = await run_tests(program, self.tests, test_seconds=test_seconds, seconds=seconds)
        return CodeResult(verdict.first(self.visible), verdict.fraction)

    async def outputs(self, text: str) -> tuple[str, ...] | None:
        """What the program in a text returns on the visible tests; None if there is no program."""
        return None if code_in(text) is None else (await self.test(text)).visible.outputs(self.visible)


async def of_each(texts: Sequence[str], run: Callable[[str], Awaitable[Result]]) -> list[Result]:
    """The result of `run` for each text; equal texts are run once."""
    distinct = list(dict.fromkeys(texts))
    results = dict(zip(distinct, await asyncio.gather(*map(run, distinct)), strict=True))
    return [results[text] for text in texts]


@dataclass(frozen=True)
class Mbpp(DatasetEnv):
    """MBPP: short functions; use `reward: code`. `task.answer` is a reference solution."""

    training = testing = MBPP

    prompt: str = "{question}\n\nGive the code in one ```python block."

    @classmethod
    def readable(cls) -> list[str]:
        return [source.name for source in (MBPP, HUMANEVAL, DEEPCODER)]

    def open(self, task: Task) -> CodeWorld:
        """A workflow may test programs before it answers."""
        return CodeWorld(task.meta["tests"])

    def reference(self, task: Task) -> Any:
        """The tests, in their dataset's format."""
        return task.meta["tests"]


@dataclass(frozen=True)
class HumanEval(Mbpp):
    """HumanEval: functions to complete from their docstrings, for evaluation; trains on MBPP."""

    training = MBPP
    testing = HUMANEVAL


@dataclass(frozen=True)
class DeepCoder(Mbpp):
    """DeepCoder: problems of programming contests."""

    training = testing = DEEPCODER
