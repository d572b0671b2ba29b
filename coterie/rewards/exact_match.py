"""Exact match: the same text, or the same last number."""

from __future__ import annotations

from typing import Any

from coterie.rewards.answer_extraction import last_number


def exact(
    answer: Any,
    truth: Any,
    *,
    case: bool = True,  # compare upper and lower case
) -> float:
    """1 if the answer equals the reference, ignoring surrounding whitespace; `case: false` also ignores case."""
    text, reference = str(answer).strip(), str(truth).strip()
    return float(text == reference if case else text.casefold() == reference.casefold())


def number(answer: Any, truth: Any) -> float:
    """1 if the last number in the answer equals the reference: "so it costs $1,234.50." for 1234.5."""
    reference = last_number(str(truth))
    if reference is None:
        raise ValueError(f"reward number: the reference {truth!r} has no number; exact or math may fit this task")
    return float(last_number(str(answer)) == reference)
