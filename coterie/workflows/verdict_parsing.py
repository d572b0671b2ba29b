"""Parse verdicts and lists from a role's text."""

from __future__ import annotations

import re

from coterie.rewards.answer_extraction import last_match

# Between "verdict" and its value: spaces, emphasis, quotes, brackets, a box; but not the end of a sentence.
STATED = re.compile(
    r"\bverdict(?:[\s*_:=`\"'“”‘’$({\[<>—–-]|is\b|\\(?:boxed|text\w*|math\w*)(?=\s*\{))*+(?P<word>[A-Za-z]+)",
    re.IGNORECASE,
)
FIRST = re.compile(r"(?P<word>[A-Za-z]+)")
# "No problems found." is neither yes nor no.
NO_FAULT = re.compile(
    r"no(?:\s+\w+){0,2}\s+(?:problem|issue|error|mistake|bug|flaw|fault|concern|objection|complaint|doubt)",
    re.IGNORECASE,
)
YES = {"correct", "right", "accept", "accepted", "approve", "approved", "pass", "passed", "passes", "yes", "good"}
NO = {"incorrect", "wrong", "reject", "rejected", "fail", "failed", "fails", "no", "not", "bad", "revise"}
BULLET = re.compile(r"^\s*(?:[-*•>#]+|\(?\d+[.):]|\bquery\s*\d*:|\bstep\s*\d*:)\s*", re.IGNORECASE)
AROUND = " \t`\"'“”*_"


def verdict(text: str) -> bool | None:
    """The verdict of a text: the word after its last "Verdict:", else its first word; None if neither is one.

    "It adds up.\\nVerdict: CORRECT"  →  True        "Wrong, 2 + 2 is 4."  →  False
    "**Verdict**: \\boxed{pass}"     →  True        "No errors found."    →  None
    "Verdict: perhaps"               →  None        "The sum is correct"  →  None
    """
    found = last_match(STATED, text) or FIRST.search(text[:100])
    if found is None or NO_FAULT.match(text[found.start("word") :][:100]):
        return None
    word = found["word"].lower()
    return True if word in YES else False if word in NO else None


def items(text: str, most: int) -> list[str]:
    """The distinct items of a list, without bullets or numbers; lines that end in a colon are headings and left out.

    "Queries:\\n1. capital of Peru\\n- Lima"  →  ["capital of Peru", "Lima"]
    """
    lines = (BULLET.sub("", line).strip(AROUND) for line in text.splitlines())
    return list(dict.fromkeys(line for line in lines if line and not line.endswith(":")))[:most]
