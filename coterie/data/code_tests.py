"""Tests of programs are kept as their source has them, in `meta.tests`; the code grader reads every source's shape."""

from __future__ import annotations

from typing import Any

from coterie.rewards.code.tests import read_tests

WRONG_SHAPE = (ValueError, TypeError, KeyError, IndexError, AttributeError, SyntaxError, RecursionError)


def untestable(tests: Any) -> str | None:
    """Why the code grader cannot read these tests, or None."""
    try:
        read_tests(tests)
    except WRONG_SHAPE as error:
        return f"tests cannot be read: {type(error).__name__}: {str(error).removeprefix('reward code: ')}"
    return None
