"""Find the answer in what a model said."""

from __future__ import annotations

import re
from decimal import Decimal

# A minus counts as a sign only where it does not subtract: `= -3` but not `5-3`.
# The exponent is short, so that a number that a model made up cannot eat the memory.
NUMBER = re.compile(
    r"(?P<minus>(?<![\w)\]}])[-\u2212])?\\?[$€£¥]?"
    r"(?P<digits>[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])(?:\.[0-9]+)?|[0-9]+(?:\.[0-9]+)?|(?<!\w)\.[0-9]+)"
    r"(?P<exponent>[eE][+-]?[0-9]{1,3}(?![0-9]))?"
    r"(?:/(?P<below>0*[1-9][0-9]*))?"
)
BOX = re.compile(r"\\boxed\s*\{")


def last_number(text: str) -> Decimal | None:
    """The value of the last number in a text, or None.

    "$1,234.50"  →  1234.50        "x = 5."   →  5
    "10-3"       →  3              "a 3/4"    →  0.75
    "about 50%"  →  50             "none"     →  None
    """
    matches = list(NUMBER.finditer(text))
    if not matches:
        return None
    last = matches[-1]
    value = Decimal(last["digits"].replace(",", "") + (last["exponent"] or ""))
    if last["below"]:
        value = value / Decimal(last["below"])
    return value.copy_negate() if last["minus"] else value


def boxed(text: str) -> str | None:
    """What stands in the last closed `\\boxed{}`, its own braces included, or None."""
    for start in reversed([match.end() for match in BOX.finditer(text)]):
        end = _closing(text, start)
        if end is not None:
            return text[start:end]
    return None


def marked(text: str) -> str | None:
    """What follows the last `####` on its line, or None: GSM8K's way to mark an answer."""
    _, mark, rest = text.rpartition("####")
    lines = rest.strip().splitlines()
    return lines[0].strip() if mark and lines else None


def _closing(text: str, start: int) -> int | None:
    """Where the brace that was opened just before `start` closes; `\\{` and `\\}` are text."""
    depth, position = 1, start
    while position < len(text):
        if text[position] == "\\":
            position += 1
        elif text[position] in "{}":
            depth += 1 if text[position] == "{" else -1
        if depth == 0:
            return position
        position += 1
    return None
