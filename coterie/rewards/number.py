"""Right when the last number is the one we look for."""

from __future__ import annotations

from typing import Any

from coterie.rewards.answer_extraction import last_number


def number(answer: Any, truth: Any) -> float:
    """1 when the last number in the answer equals the reference: "so it costs $1,234.50." for 1234.5."""
    wanted = last_number(str(truth))
    if wanted is None:
        raise ValueError(f"reward number: the reference {truth!r} has no number; exact or math may fit this task")
    return float(last_number(str(answer)) == wanted)
