"""Right when it names the same relation between two sentences."""

from __future__ import annotations

import re
from typing import Any, Literal

from coterie.rewards.answer_extraction import final, last_of

Label = Literal["entailment", "neutral", "contradiction"]
LABELS: tuple[Label, ...] = ("entailment", "neutral", "contradiction")  # in the order of the numbers that data sets use
WORD = re.compile(r"\b(?P<entailment>entail\w*)|\b(?P<neutral>neutral\w*)|\b(?P<contradiction>contradict\w*)")


def nli(answer: Any, truth: Any) -> float:
    """1 when the answer's label is the reference's: entailment, neutral or contradiction.

    The label is looked for in what the text points out as its answer, else in all of it, where the last one counts.
    """
    wanted = label(str(truth))
    if wanted is None:
        raise ValueError(f"reward nli: the reference {truth!r} is none of {', '.join(LABELS)}, e, n, c, 0, 1, 2")
    return float(label(str(answer)) == wanted)


def label(text: str) -> Label | None:
    """The label that a text ends on, or None.

    "It is neutral, no: a contradiction."  →  contradiction      "Answer: E"   →  entailment
    "\\boxed{\\text{Neutral}}"             →  neutral            "2"           →  contradiction
    """
    answer = final(text).lower()
    for short in (tuple("enc"), tuple("012")):
        if answer.strip(" .()") in short:
            return LABELS[short.index(answer.strip(" .()"))]
    return _last_word(answer) or _last_word(text.lower())


def _last_word(text: str) -> Label | None:
    last = last_of(WORD, text)
    return next(name for name in LABELS if last[name]) if last else None
