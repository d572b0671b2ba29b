"""Math reward: equivalence of formulas by math-verify, with limits on what is parsed."""

from __future__ import annotations

import logging
import re
from typing import Any

from math_verify import parse, verify

from coterie.rewards.answer_extraction import boxed, last_number, marked_answer, stated_answer

# It warns that its own timeouts are off. They need the main thread; the grader process has a deadline instead.
logging.getLogger("math_verify").setLevel(logging.ERROR)
# Limits of an answer, beyond which the parser may take minutes. Of 2,700 references of MATH-500 and DeepScaleR the
# longest has 159 characters, the deepest 3 levels and the largest exponent 4 digits.
MAX_LENGTH = 1000  # characters
MAX_DEPTH = 8  # of nested brackets of any kind
BRACKET = re.compile(r"\\?[{}]|[()\[\]]")
TOO_LARGE = re.compile(
    r"(?:\^|\*\*)[\s{(+-]*+[0-9]{6}"  # 2^{1000000}
    r"|(?:\^|\*\*)[\s{(+-]*+[0-9.]++\s*+(?:\^|\*\*)[\s{(+-]*+[0-9]"  # 9^{9^{9}}
    r"|[0-9]{5}[\s})]*+!|![\s})]*+!"  # 10000!, 5!!
)


def math(
    answer: Any,
    truth: Any,
    *,
    strict: bool = False,  # accept only an answer in \\boxed{}
    seconds: float = 5.0,  # seconds for one answer; at most rollout.score_deadline
) -> float:
    """1 if the boxed answer is mathematically equal to the reference: `\\boxed{\\frac{1}{2}}` for 0.5.

    The last box counts. Without one, `<answer>x</answer>` or `#### x` counts, then a stated formula, then the last
    number; with `strict: true` only a box counts. `seconds` is the deadline of one answer, which the caller enforces,
    capped by `rollout.score_deadline`.
    """
    text, expected = str(answer).strip(), str(truth).strip()
    if text == expected and not strict:
        return 1.0
    reference = marked_answer(expected) or expected
    gold = _parse(reference)
    if not gold:
        raise ValueError(f"reward math: the reference {truth!r} cannot be parsed")
    final = (boxed(text) or "") if strict else _final_answer(text)
    if final == reference:
        return 1.0
    return float(is_within_limits(final) and verify(gold, _parse(final), timeout_seconds=None))


def is_within_limits(expression: str) -> bool:
    """True if an expression is short, flat and small enough to parse and compare. Linear time."""
    if len(expression) > MAX_LENGTH or TOO_LARGE.search(expression):
        return False
    depth = 0
    for bracket in BRACKET.findall(expression):
        depth += 1 if bracket[-1] in "{([" else -1
        if depth > MAX_DEPTH:
            return False
    return True


def _final_answer(text: str) -> str:
    found = marked_answer(text)
    if found is not None:
        return found
    sentence = stated_answer(text)
    if sentence and "\\" in sentence:  # in "the answer is $\frac{1}{2}$" the last number is not the value
        return sentence.rstrip(".").strip("$ ")
    number = last_number(text)
    return "" if number is None else format(number, "f")


def _parse(expression: str) -> list[Any]:
    parsed: list[Any] = parse(f"\\boxed{{{expression}}}", parsing_timeout=None)
    return parsed
