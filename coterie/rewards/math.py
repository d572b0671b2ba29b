"""Right when it is the same mathematics."""

from __future__ import annotations

import logging
import re
from typing import Any

from math_verify import parse, verify

from coterie.rewards.answer_extraction import boxed, last_number, pointed_out, stated

# It warns that its own alarms are off. They work in a main thread only; ours is the process's deadline.
logging.getLogger("math_verify").setLevel(logging.ERROR)
# What an answer may be made of. Of 2,700 references of MATH-500 and DeepScaleR the longest has 159 characters, the
# deepest 3 levels and the largest power 4 digits; beyond these limits a parser may need minutes.
LONGEST = 1000  # characters
DEEPEST = 8  # brackets of any kind
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
    """1 when the boxed answer equals the reference mathematically: `\\boxed{\\frac{1}{2}}` for 0.5.

    The last box counts. Without one, `<answer>x</answer>` or `#### x` counts, then a stated formula, then the
    last number; with `strict: true` only a box counts. `seconds` is the time for one answer, which the caller keeps,
    where `rollout.score_deadline` is no shorter.
    """
    said, wanted = str(answer).strip(), str(truth).strip()
    if said == wanted and not strict:
        return 1.0
    reference = pointed_out(wanted) or wanted
    gold = _parse(reference)
    if not gold:
        raise ValueError(f"reward math: the reference {truth!r} has nothing to compare with")
    final = (boxed(said) or "") if strict else _final(said)
    if final == reference:
        return 1.0
    return float(is_within_limits(final) and verify(gold, _parse(final), timeout_seconds=None))


def is_within_limits(expression: str) -> bool:
    """True if an expression is short, flat and small enough to be parsed and compared; in linear time."""
    if len(expression) > LONGEST or TOO_LARGE.search(expression):
        return False
    depth = 0
    for bracket in BRACKET.findall(expression):
        depth += 1 if bracket[-1] in "{([" else -1
        if depth > DEEPEST:
            return False
    return True


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
