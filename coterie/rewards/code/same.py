"""Whether a program's result is the one that was wanted. Runs in the sandbox, so it imports little."""

from __future__ import annotations

import math

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

LONGEST = 70  # letters of a number
NEAR = 1e-6  # by how much a fraction may be off


def same_output(said: str, wanted: str) -> bool:
    """Whether two texts are the same, line by line: spaces do not matter, nor the last digits of a fraction."""
    said, wanted = said.strip(), wanted.strip()
    if said == wanted:
        return True
    ours, theirs = said.splitlines(), wanted.splitlines()
    return len(ours) == len(theirs) and all(
        a == b or _same_line(a.split(), b.split()) for a, b in zip(ours, theirs, strict=True)
    )


def same_value(got: Any, wanted: Any) -> bool:
    """Whether two values from JSON are equal. Some data sets put each expected value in a list of its own."""
    if _equal(got, wanted):
        return True
    return isinstance(wanted, list) and len(wanted) == 1 and _equal(got, wanted[0])


def _same_line(said: list[str], wanted: list[str]) -> bool:
    return len(said) == len(wanted) and all(a == b or _near(a, b) for a, b in zip(said, wanted, strict=True))


def _near(said: str, wanted: str) -> bool:
    if max(len(said), len(wanted)) > LONGEST or not set(said + wanted) <= set("+-.eE0123456789"):
        return False
    try:
        if set(wanted) & set(".eE"):
            return math.isclose(float(said), float(wanted), rel_tol=NEAR, abs_tol=NEAR)
        return int(said) == int(wanted)
    except ValueError:  # no number, or a fraction where none is wanted
        return False


def _equal(got: Any, wanted: Any) -> bool:
    if isinstance(wanted, float) and isinstance(got, (int, float)):
        return got == wanted or math.isclose(got, wanted, rel_tol=NEAR, abs_tol=NEAR)
    if isinstance(wanted, list) and isinstance(got, list):
        return len(got) == len(wanted) and all(_equal(a, b) for a, b in zip(got, wanted, strict=True))
    if isinstance(wanted, dict) and isinstance(got, dict):
        return got.keys() == wanted.keys() and all(_equal(got[key], wanted[key]) for key in wanted)
    return bool(got == wanted)
