"""Right when it is the same mathematics."""

from __future__ import annotations

import logging
from typing import Any

from math_verify import parse, verify

from coterie.rewards.answers import boxed, last_number, marked

# It warns that its own alarms are off. They work in a main thread only; ours is the worker's deadline.
logging.getLogger("math_verify").setLevel(logging.ERROR)


def math(answer: Any, truth: Any) -> float:
    """1 when the boxed answer equals the reference mathematically: `\\boxed{\\frac{1}{2}}` for 0.5.

    The last box counts. Without one, `#### x` counts, then the last number.
    """
    said, wanted = str(answer).strip(), str(truth).strip()
    if said == wanted:
        return 1.0
    gold = _parse(_marked(wanted) or wanted)
    if not gold:
        raise ValueError(f"reward math: the reference {truth!r} has nothing to compare with")
    return float(verify(gold, _parse(_final(said)), timeout_seconds=None))


def _marked(text: str) -> str | None:
    """The answer that a text points out itself, by a box or by `####`."""
    return boxed(text) or marked(text)


def _final(text: str) -> str:
    found = _marked(text)
    if found is not None:
        return found
    number = last_number(text)
    return "" if number is None else format(number, "f")


def _parse(expression: str) -> list[Any]:
    parsed: list[Any] = parse(f"\\boxed{{{expression}}}", parsing_timeout=None)
    return parsed
