"""Right when it says the same words, as SQuAD and HotpotQA count them."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Sequence
from typing import Any, Literal

from coterie.rewards.answer_extraction import final

ARTICLES = re.compile(r"\b(?:a|an|the)\b")
PUNCTUATION = str.maketrans("", "", string.punctuation)
VERDICTS = {"yes", "no", "noanswer"}  # half of "yes and no" is not half right


def qa(
    answer: Any,
    truth: Any,
    *,
    measure: Literal["f1", "exact"] = "f1",  # word overlap (F1), or equality
) -> float:
    """How many words the answer shares with the reference (F1), or 1 when they are the same words (exact).

    Capitals, punctuation and articles do not count. Of several references the best counts. What is compared is
    what the text points out as its answer, by a box, `<answer>`, `####` or "the answer is", else all of it.
    """
    said = words(final(str(answer)))
    references = truth if isinstance(truth, Sequence) and not isinstance(truth, str) else [truth]
    golds = [words(str(reference)) for reference in references]
    if not golds or not all(golds):
        raise ValueError(f"reward qa: the reference {truth!r} has no words to compare with")
    return max(f1(said, gold) if measure == "f1" else float(said == gold) for gold in golds)


def words(text: str) -> list[str]:
    """The words that count: "The U.S.A." is usa. Where none is left, as of "A", the text itself."""
    bare = ARTICLES.sub(" ", text.lower().translate(PUNCTUATION)).split()
    return bare or text.lower().split()


def f1(said: list[str], gold: list[str]) -> float:
    """The harmonic mean of precision and recall over words."""
    if said != gold and any(len(side) == 1 and side[0] in VERDICTS for side in (said, gold)):
        return 0.0
    shared = sum((Counter(said) & Counter(gold)).values())
    return 2 * shared / (len(said) + len(gold))
