"""Right when it is the same text."""

from __future__ import annotations

from typing import Any


def exact(answer: Any, truth: Any, *, case: bool = True) -> float:
    """1 when the answer is the reference, spaces around it aside; `case: false` ignores capitals."""
    said, wanted = str(answer).strip(), str(truth).strip()
    return float(said == wanted if case else said.casefold() == wanted.casefold())
