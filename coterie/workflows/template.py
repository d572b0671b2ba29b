"""Prompts with named gaps."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

GAP = re.compile(r"\{\{(?P<escaped>[^{}]*)\}\}|\{(?P<name>[^{}]+)\}")


def fill(template: str, values: Mapping[str, str]) -> str:
    """Put a value into each gap; whatever else has braces stays.

    "{question} Use \\boxed{}."   →  "1 + 1? Use \\boxed{}."
    "\\boxed{{answer}}"           →  "\\boxed{answer}"
    """

    def text(gap: re.Match[str]) -> str:
        if gap["name"] is None:
            return f"{{{gap['escaped']}}}"
        return values[gap["name"]] if gap["name"] in values else gap[0]

    return GAP.sub(text, template)


def check(template: str, names: Iterable[str], owner: str) -> None:
    """Complain of a word in braces that nothing will fill. `owner` says whose prompt it is."""
    allowed = list(names)
    for gap in GAP.finditer(template):
        # Not a word: LaTeX such as \frac{1}{2}.
        if gap["name"] and gap["name"].isidentifier() and gap["name"] not in allowed:
            listed = ", ".join(f"{{{name}}}" for name in allowed)
            name = f"{{{gap['name']}}}"
            raise ValueError(f"{owner}: unknown field {name}; it may use {listed}, and {{{name}}} for the text {name}")
