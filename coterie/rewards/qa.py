"""Question answering reward: token F1 or exact match, as in SQuAD and HotpotQA."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Sequence
from typing import Any, Literal

from coterie.rewards.answer_extraction import final_answer

ARTICLES = re.compile(r"\b(?:a|an|the)\b")
PUNCTUATION = str.maketrans("", "", string.punctuation)
VERDICTS = {"yes", "no", "noanswer"}  # no partial credit


def qa(
    answer: Any,
    truth: Any,
    *,
    measure: Literal["f1", "exact"] = "f1",  # word overlap (F1), or equality
) -> float:
    """Token F1 with the reference (`f1`), or 1 if the tokens are equal (`exact`).

    Ignores case, punctuation and articles. Of several references the best counts. Compares the final answer, marked by
    a box, `<answer>`, `####` or "the answer is", else the whole text.
    """
    tokens = words(final_answer(str(answer)))
    references = truth if isinstance(truth, Sequence) and not isinstance(truth, str) else [truth]
    golds = [words(str(reference)) for reference in references]
    if not golds or not all(golds):
        raise ValueError(f"reward qa: the reference {truth!r} has no words to compare with")
    return max(f1(tokens, gold) if measure == "f1" else float(tokens == gold) for gold in golds)


def words(text: str) -> list[str]:
    """Normalized tokens: "The U.S.A." → usa. If none is left, as for "A", the text itself."""
    bare = ARTICLES.sub(" ", text.lower().translate(PUNCTUATION)).split()
    return bare or text.lower().split()


def f1(tokens: list[str], gold: list[str]) -> float:
    """The harmonic mean of precision and recall over words."""
    if tokens != gold and any(len(side) == 1 and side[0] in VERDICTS for side in (tokens, gold)):
        return 0.0
    shared = sum((Counter(tokens) & Counter(gold)).values())
    return 2 * shared / (len(tokens) + len(gold))
