"""Extract the final answer from a model's text. Graders and workflows share these functions, so that they agree.

Every function is linear in the length of the text, also for adversarial texts.
"""

from __future__ import annotations

import re
from collections import deque
from decimal import Decimal

# A minus is a sign only if it does not subtract: `= -3` but not `5-3`.
# The exponent is short, so that a model's number cannot exhaust the memory.
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
AROUND = " \t\r\n*_`$\"'“”‘’"  # characters stripped from around an answer


def last_number(text: str) -> Decimal | None:
    """The value of the last number in a text, or None.

    "$1,234.50"  →  1234.50        "x = 5."   →  5
    "10-3"       →  3              "a 3/4"    →  0.75
    "about 50%"  →  50             "none"     →  None
    """
    last = last_match(NUMBER, text)
    if last is None:
        return None
    value = Decimal(last["digits"].replace(",", "") + (last["exponent"] or ""))
    if last["below"]:
        value = value / Decimal(last["below"])
    return value.copy_negate() if last["minus"] else value


def boxed(text: str) -> str | None:
    """The content of the last closed `\\boxed{}`, with nested braces, or None."""
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
    """The content of the last `<answer>…</answer>`, or None."""
    end = text.rfind(f"</{tag}>")
    start = text.rfind(f"<{tag}>", 0, max(end, 0))
    return text[start + len(tag) + 2 : end].strip() if start >= 0 else None


def after_hashes(text: str) -> str | None:
    """The text after the last `####` on its line, GSM8K's mark of an answer, or None."""
    _, mark, rest = text.rpartition("####")
    line = rest.lstrip().split("\n", 1)[0].strip()
    return line if mark and line else None


def stated_answer(text: str) -> str | None:
    """The rest of the line after the last "the answer is" or "Answer:", or None."""
    last = last_match(STATED, text)
    line = text[last.end() :].split("\n", 1)[0].strip(AROUND) if last else ""
    return line or None


def marked_answer(text: str) -> str | None:
    """The answer in the last box, else in `<answer>` tags, else after `####`; or None."""
    return boxed(text) or tagged(text) or after_hashes(text)


def final_answer(text: str) -> str:
    """The explicit answer of a text, else the whole text.

    "I think… \\boxed{\\text{Paris}}"  →  "Paris"      "**Answer:** Paris"  →  "Paris"
    "<answer>Paris</answer> Right?"    →  "Paris"      "Paris"              →  "Paris"
    """
    return explicit_answer(text) or text.strip(AROUND)


def explicit_answer(text: str) -> str | None:
    """The marked answer, else the stated one; or None."""
    found = marked_answer(text)
    return strip_latex(found) if found else stated_answer(text)


def last_match(pattern: re.Pattern[str], text: str) -> re.Match[str] | None:
    """The last match of a pattern, or None."""
    last = deque(pattern.finditer(text), maxlen=1)
    return last[0] if last else None


def strip_latex(latex: str) -> str:
    """Remove LaTeX font commands: `\\text{Paris}` → Paris."""
    bare = FONT.sub("", latex)
    return (bare.replace("{", "").replace("}", "") if bare != latex else latex).strip(AROUND)
