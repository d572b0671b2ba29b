"""Right when it is the same mathematics."""

from __future__ import annotations

import logging
from typing import Any

from math_verify import parse, verify

from coterie.rewards.answers import last_number, pointed_out, stated

# It warns that its own alarms are off. They work in a main thread only; ours is the worker's deadline.
logging.getLogger("math_verify").setLevel(logging.ERROR)
LONGEST = 1000  # characters of an answer; nobody's reference is so long, and a parser may need minutes for it


def math(answer: Any, truth: Any) -> float:
    """1 when the boxed answer equals the reference mathematically: `\\boxed{\\frac{1}{2}}` for 0.5.

    The last box counts. Without one, `<answer>x</answer>` or `#### x` counts, then a stated formula, then the
    last number.
    """
    said, wanted = str(answer).strip(), str(truth).strip()
    if said == wanted:
        return 1.0
    gold = _parse(pointed_out(wanted) or wanted)
    if not gold:
        raise ValueError(f"reward math: the reference {truth!r} has nothing to compare with")
    final = _final(said)
    return float(len(final) <= LONGEST and verify(gold, _parse(final), timeout_seconds=None))


def _final(text: str) -> str:
    found = pointed_out(text)
    if found is not None:
        return found
    sentence = stated(text)
    if sentence and "\\" in sentence:  # "the answer is $\frac{1}{2}$": its last number is not its value
        return sentence.rstrip(".").strip("$ ")
    number = last_number(text)
    return "" if number is None else format(number, "f")


def _parse(expression: str) -> list[Any]:
    parsed: list[Any] = parse(f"\\boxed{{{expression}}}", parsing_timeout=None)
    return parsed
