"""Where a team tries its programs before it answers."""

from __future__ import annotations

from typing import Any, NamedTuple

from coterie.rewards.code.grader import Failure, Verdict, code_in, run_tests
from coterie.rewards.code.test_formats import read_tests

NO_PROGRAM = "there is no program in the answer; give it in a ```python block"


class Tried(NamedTuple):
    """What came of a program."""

    shown: Verdict  # of the tests that a team may see
    worth: float  # the share of all tests that it passes: to reward it by


class Bench:
    """The tests of one task, to run as often as a workflow likes. What the grader reads as the program is run.

    A team sees how its program does on the first half of the tests, or on the only one. By the rest it is graded alone:
    who has seen the answers need not know how to find them.
    """

    def __init__(self, tests: Any) -> None:
        self.tests = read_tests(tests)
        self.open = (len(self.tests.inputs) + 1) // 2

    async def test(self, text: str) -> Tried:
        """Which tests the program in a text passes, and how it fails others."""
        program = code_in(text)
        if program is None:
            return Tried(Verdict(0, self.open, (Failure(0, "", "a program", NO_PROGRAM),)), 0.0)
        verdict = await run_tests(program, self.tests)
        return Tried(verdict.first(self.open), verdict.fraction)
