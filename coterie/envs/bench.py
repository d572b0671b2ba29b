"""Where a team tries its programs before it answers."""

from __future__ import annotations

from typing import Any

from coterie.rewards.code import Failure, Verdict, code_in, run_tests
from coterie.rewards.code_tests import read_tests

NO_PROGRAM = "there is no program in the answer; give it in a ```python block"


class Bench:
    """The tests of one task, to run as often as a workflow likes. What the grader reads as the program is run."""

    def __init__(self, tests: Any) -> None:
        self.tests = read_tests(tests)

    async def test(self, text: str) -> Verdict:
        """Which tests the program in a text passes, and how it fails the others."""
        program = code_in(text)
        if program is None:
            return Verdict(0, len(self.tests.inputs), (Failure(0, "", "a program", NO_PROGRAM),))
        return await run_tests(program, self.tests)
