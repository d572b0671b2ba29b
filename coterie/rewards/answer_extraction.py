"""Find the answer in what a model said. Graders and workflows both read through this file, so that they see the same.

Every function here takes time in proportion to the text, whatever the text is.
"""

from __future__ import annotations

import re
from collections import deque
from decimal import Decimal

# A minus counts as a sign only where it does not subtract: `= -3` but not `5-3`.
# The exponent is short, so that a number that a model made up cannot eat the memory.
NUMBER = re.compile(
    r"(?P<minus>(?<![\w)\]}])[-\u2212])?\\?[$€£¥]?"
    r"(?P<digits>[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])(?:\.[0-9]+)?|[0-9]+(?:\.[0-9]+)?|(?<!\w)\.[0-9]+)"
    r"(?P<exponent>[eE][+-]?[0-9]{1,3}(?![0-9]))?"
    r"(?:/(?P<below>0*[1-9][0-9]*))?"
)
BOX = re.compile(r"\\boxed\s*+\{")
BRACE = re.compile(r"\\.|[{}]", re.DOTALL)  # `\{` and `\}` are text
STATED = re.compile(r"\banswer[\s*_]*+(?:is\b|[:=])[\s*_:]*+", re.IGNORECASE)
FONT = re.compile(r"\\(?:text|math)[a-z]*+\s*+(?=\{)")
AROUND = " \t\r\n*_`$\"'“”‘’"  # what people put around an answer


def last_number(text: str) -> Decimal | None:
    """The value of the last number in a text, or None.

    "$1,234.50"  →  1234.50        "x = 5."   →  5
    "10-3"       →  3              "a 3/4"    →  0.75
    "about 50%"  →  50             "none"     →  None
    """
    last = last_of(NUMBER, text)
    if last is None:
        return None
    value = Decimal(last["digits"].replace(",", "") + (last["exponent"] or ""))
    if last["below"]:
        value = value / Decimal(last["below"])
    return value.copy_negate() if last["minus"] else value


def boxed(text: str) -> str | None:
    """What stands in the last closed `\\boxed{}`, its own braces included, or None."""
    closes: dict[int, int] = {}
    opened: list[int] = []
    for brace in BRACE.finditer(text):
        if brace[0] == "{":
            opened.append(brace.end())
        elif brace[0] == "}" and opened:
            closes[opened.pop()] = brace.start()
    start = max((box.end() for box in BOX.finditer(text) if box.end() in closes), default=None)
    return None if start is None else text[start : closes[start]]


def tagged(text: str, tag: str = "answer") -> str | None:
    """What stands in the last `<answer>…</answer>`, or None."""
    end = text.rfind(f"</{tag}>")
    start = text.rfind(f"<{tag}>", 0, max(end, 0))
    return text[start + len(tag) + 2 : end].strip() if start >= 0 else None


def marked(text: str) -> str | None:
    """What follows the last `####` on its line, or None: GSM8K's way to mark an answer."""
    _, mark, rest = text.rpartition("####")
    line = rest.lstrip().split("\n", 1)[0].strip()
    return line if mark and line else None


def stated(text: str) -> str | None:
    """What the last "the answer is …" or "Answer: …" says, to the end of its line, or None."""
    last = last_of(STATED, text)
    line = text[last.end() :].split("\n", 1)[0].strip(AROUND) if last else ""
    return line or None


def pointed_out(text: str) -> str | None:
    """The answer that a text sets apart: in its last box, else in `<answer>` tags, else after `####`; or None."""
    return boxed(text) or tagged(text) or marked(text)


def final(text: str) -> str:
    """What counts of a text as its answer: what it points out, else what it states, else all of it.

    "I think… \\boxed{\\text{Paris}}"  →  "Paris"      "**Answer:** Paris"  →  "Paris"
    "<answer>Paris</answer> Right?"    →  "Paris"      "Paris"              →  "Paris"
    """
    return set_apart(text) or text.strip(AROUND)


def set_apart(text: str) -> str | None:
    """What a text points out as its answer, else what it states; or None."""
    found = pointed_out(text)
    return plain(found) if found else stated(text)


def last_of(pattern: re.Pattern[str], text: str) -> re.Match[str] | None:
    """The last match of a pattern, or None."""
    last = deque(pattern.finditer(text), maxlen=1)
    return last[0] if last else None


def plain(latex: str) -> str:
    """Words without the LaTeX fonts around them: `\\text{Paris}` is Paris."""
    bare = FONT.sub("", latex)
    return (bare.replace("{", "").replace("}", "") if bare != latex else latex).strip(AROUND)
