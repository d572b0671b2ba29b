"""Right when the text has the form that was asked for."""

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
    """1 when the pattern is found and every section is there: `sections: [think, answer]` wants one filled
    `<think>…</think>` and then one filled `<answer>…</answer>`. In the pattern a dot is any character."""
    text = str(answer)
    found = pattern is None or re.search(pattern, text, re.DOTALL) is not None
    return float(found and in_order(text, sections))


def check(pattern: str | None = None, sections: tuple[str, ...] = ()) -> None:
    """Complain of a form that cannot be looked for."""
    if pattern is None and not sections:
        raise ValueError("reward format: give a pattern, sections, or both")
    try:
        re.compile(pattern or "")
    except re.error as error:
        raise ValueError(f"reward format: pattern {pattern!r} is no regular expression: {error}") from None


def in_order(text: str, sections: tuple[str, ...]) -> bool:
    """Whether each section stands in the text once, with something in it, one after the other."""
    end = 0
    for name in sections:
        opening, closing = f"<{name}>", f"</{name}>"
        start, stop = text.find(opening), text.find(closing)
        once = text.count(opening) == text.count(closing) == 1
        if not once or start < end or not text[start + len(opening) : stop].strip():
            return False
        end = stop + len(closing)
    return True
