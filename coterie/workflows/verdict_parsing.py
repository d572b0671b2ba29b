"""Read what roles decide: verdicts and lists."""

from __future__ import annotations

import re

from coterie.rewards.answer_extraction import last_of

# Between the word and what it says: spaces, marks of emphasis, quotes, brackets, a box; but not the end of a sentence.
STATED = re.compile(
    r"\bverdict(?:[\s*_:=`\"'“”‘’$({\[<>—–-]|is\b|\\(?:boxed|text\w*|math\w*)(?=\s*\{))*+(?P<word>[A-Za-z]+)",
    re.IGNORECASE,
)
FIRST = re.compile(r"(?P<word>[A-Za-z]+)")
# "No problems found." finds nothing wrong; whether that is a yes, its writer must say.
NO_FAULT = re.compile(
    r"no(?:\s+\w+){0,2}\s+(?:problem|issue|error|mistake|bug|flaw|fault|concern|objection|complaint|doubt)",
    re.IGNORECASE,
)
YES = {"correct", "right", "accept", "accepted", "approve", "approved", "pass", "passed", "passes", "yes", "good"}
NO = {"incorrect", "wrong", "reject", "rejected", "fail", "failed", "fails", "no", "not", "bad", "revise"}
MARK = re.compile(r"^\s*(?:[-*•>#]+|\(?\d+[.):]|\bquery\s*\d*:|\bstep\s*\d*:)\s*", re.IGNORECASE)
AROUND = " \t`\"'“”*_"


def verdict(text: str) -> bool | None:
    """Whether a judge says yes: the word after its last "Verdict:", else its very first word; None if neither is one.

    "It adds up.\\nVerdict: CORRECT"  →  True        "Wrong, 2 + 2 is 4."  →  False
    "**Verdict**: \\boxed{pass}"     →  True        "No errors found."    →  None
    "Verdict: perhaps"               →  None        "The sum is correct"  →  None
    """
    found = last_of(STATED, text) or FIRST.search(text[:100])
    if found is None or NO_FAULT.match(text[found.start("word") :][:100]):
        return None
    word = found["word"].lower()
    return True if word in YES else False if word in NO else None


def items(text: str, most: int) -> list[str]:
    """The lines of a list without their marks, each once; headings that end in a colon are left out.

    "Queries:\\n1. capital of Peru\\n- Lima"  →  ["capital of Peru", "Lima"]
    """
    lines = (MARK.sub("", line).strip(AROUND) for line in text.splitlines())
    return list(dict.fromkeys(line for line in lines if line and not line.endswith(":")))[:most]
