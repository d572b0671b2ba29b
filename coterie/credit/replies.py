"""What can be wrong with a reply, whatever it answers."""

from __future__ import annotations

import re

RUN = 4  # words that are looked for again
BOX = re.compile(r"\\boxed\s*\{\s*[^\s}]")


def repeated(text: str) -> float:
    """The share of its runs of four words that had been there before: "a b c d a b c d" has five, one of them again."""
    words = text.split()
    runs = [tuple(words[i : i + RUN]) for i in range(len(words) - RUN + 1)]
    return 1 - len(set(runs)) / len(runs) if runs else 0.0


def has_box(text: str) -> bool:
    """Whether something stands in a `\\boxed{}`."""
    return BOX.search(text) is not None
