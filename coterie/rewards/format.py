"""Format reward: a regular expression, or sections in order."""

from __future__ import annotations

import re
from typing import Any


def format(
    answer: Any,
    truth: Any,
    *,
    pattern: str | None = None,  # a regular expression that must be found; a dot matches any character
    sections: tuple[str, ...] = (),  # tags that must follow each other, each filled
) -> float:
    """1 if the pattern matches and every section is there: `sections: [think, answer]` requires one non-empty
    `<think>…</think>`, then one non-empty `<answer>…</answer>`. A dot in the pattern matches any character."""
    text = str(answer)
    found = pattern is None or re.search(pattern, text, re.DOTALL) is not None
    return float(found and in_order(text, sections))


def check(pattern: str | None = None, sections: tuple[str, ...] = ()) -> None:
    """Reject invalid options."""
    if pattern is None and not sections:
        raise ValueError("reward format: give a pattern, sections, or both")
    try:
        re.compile(pattern or "")
    except re.error as error:
        raise ValueError(f"reward format: pattern {pattern!r} is not a regular expression: {error}") from None


def in_order(text: str, sections: tuple[str, ...]) -> bool:
    """True if each section occurs exactly once, is not empty, and follows the one before."""
    end = 0
    for name in sections:
        opening, closing = f"<{name}>", f"</{name}>"
        start, stop = text.find(opening), text.find(closing)
        once = text.count(opening) == text.count(closing) == 1
        if not once or start < end or not text[start + len(opening) : stop].strip():
            return False
        end = stop + len(closing)
    return True
