"""Length penalty for texts that are too short or too long."""

from __future__ import annotations

from typing import Any, Literal


def length(
    answer: Any,
    truth: Any,
    *,
    least: int = 0,  # shortest length without a penalty
    most: int,  # longest length without a penalty
    margin: int = 0,  # how far beyond these the reward falls to -1
    unit: Literal["words", "characters"] = "words",  # what is counted
) -> float:
    """0 from `least` to `most` words, -1 at `margin` words or more outside of that, linear in between.

    least: 10, most: 20, margin: 10      5 words  →  -0.5      10 … 20  →  0      25  →  -0.5      30  →  -1
    """
    text = str(answer)
    size = len(text.split()) if unit == "words" else len(text)
    away = max(least - size, size - most, 0)
    if away == 0:
        return 0.0
    return -min(1.0, away / margin) if margin else -1.0


def check(most: int, least: int = 0, margin: int = 0, unit: str = "words") -> None:
    """Reject an empty range."""
    if not 0 <= least <= most or margin < 0:
        raise ValueError(f"reward length: 0 ≤ least ≤ most and 0 ≤ margin are needed, not {least}, {most}, {margin}")
