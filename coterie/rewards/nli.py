"""Natural language inference reward: the same label."""

from __future__ import annotations

import re
from typing import Any, Literal

from coterie.rewards.answer_extraction import final_answer, last_match

Label = Literal["entailment", "neutral", "contradiction"]
LABELS: tuple[Label, ...] = ("entailment", "neutral", "contradiction")  # in the order of datasets' numeric labels
WORD = re.compile(r"\b(?P<entailment>entail\w*)|\b(?P<neutral>neutral\w*)|\b(?P<contradiction>contradict\w*)")


def nli(answer: Any, truth: Any) -> float:
    """1 if the answer's label is the reference's: entailment, neutral or contradiction.

    The label is searched in the final answer, else in the whole text, where the last one counts.
    """
    reference = label(str(truth))
    if reference is None:
        raise ValueError(f"reward nli: the reference {truth!r} is none of {', '.join(LABELS)}, e, n, c, 0, 1, 2")
    return float(label(str(answer)) == reference)


def label(text: str) -> Label | None:
    """The last label in a text, or None.

    "It is neutral, no: a contradiction."  →  contradiction      "Answer: E"   →  entailment
    "\\boxed{\\text{Neutral}}"             →  neutral            "2"           →  contradiction
    """
    answer = final_answer(text).lower()
    for short in (tuple("enc"), tuple("012")):
        if answer.strip(" .()") in short:
            return LABELS[short.index(answer.strip(" .()"))]
    return _last_word(answer) or _last_word(text.lower())


def _last_word(text: str) -> Label | None:
    last = last_match(WORD, text)
    return next(name for name in LABELS if last[name]) if last else None
