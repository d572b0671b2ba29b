"""Read what roles decide: verdicts and lists."""

from __future__ import annotations

import re

from coterie.rewards.answers import last_of

STATED = re.compile(r"\bverdict[\s*_:=]*+(?P<word>[A-Za-z]+)", re.IGNORECASE)
FIRST = re.compile(r"[A-Za-z]+")
YES = {"correct", "right", "accept", "accepted", "approve", "approved", "pass", "passed", "passes", "yes", "good"}
NO = {"incorrect", "wrong", "reject", "rejected", "fail", "failed", "fails", "no", "not", "bad", "revise"}
MARK = re.compile(r"^\s*(?:[-*•>#]+|\(?\d+[.):]|\bquery\s*\d*:|\bstep\s*\d*:)\s*", re.IGNORECASE)
AROUND = " \t`\"'“”*_"


def verdict(text: str) -> bool | None:
    """Whether a judge says yes: the word after its last "Verdict:", else its very first word; None if neither is one.

    "It adds up.\\nVerdict: CORRECT"  →  True        "Wrong, 2 + 2 is 4."  →  False
    "Verdict: perhaps"               →  None        "The sum is correct"  →  None
    """
    found = last_of(STATED, text)
    first = FIRST.search(text[:100])
    word = (found["word"] if found else first[0] if first else "").lower()
    return True if word in YES else False if word in NO else None


def items(text: str, most: int) -> list[str]:
    """The lines of a list without their marks, each once; headings that end in a colon are left out.

    "Queries:\\n1. capital of Peru\\n- Lima"  →  ["capital of Peru", "Lima"]
    """
    lines = (MARK.sub("", line).strip(AROUND) for line in text.splitlines())
    return list(dict.fromkeys(line for line in lines if line and not line.endswith(":")))[:most]
