"""Multiple-choice reward: the same letter."""

from __future__ import annotations

import re
from typing import Any

from coterie.rewards.answer_extraction import explicit_answer

LETTER = re.compile(r"(?<![\w'’\\])([A-Z]|(?<=\()[a-z](?=\)))(?![\w'’])")
OPENING = re.compile(r"[\s(\[*_]*+(?:option|choice|answer)?[\s(\[*_:]*+([A-Za-z])(?![\w'’])", re.IGNORECASE)
ARTICLE = re.compile(r"[^\S\n]+[a-z]")  # "A dog" and "I think" are not choices


def choice(
    answer: Any,
    truth: Any,
    *,
    letters: str = "ABCD",  # the letters to choose from
) -> float:
    """1 if the answer chooses the reference's letter; the reference may be the index of the letter, from 0."""
    is_index = isinstance(truth, int) and 0 <= truth < len(letters)
    reference = letters[truth] if is_index else str(truth).strip(" ().").upper()
    if len(reference) != 1 or reference not in letters:
        raise ValueError(f"reward choice: the reference {truth!r} is none of {', '.join(letters)}")
    return float(letter(str(answer), letters) == reference)


def letter(text: str, letters: str = "ABCD") -> str | None:
    """The letter that a text chooses, or None: at the start of its answer, else the last standalone letter.

    "Answer: (b) Paris"  →  B      "A dog, so C."  →  C      "\\boxed{\\text{D}}"  →  D
    """
    answer = explicit_answer(text)
    start = OPENING.match(answer or text)
    if start and start[1].upper() in letters and not _is_word(answer or text, start, "a" if answer else "AIa"):
        return start[1].upper()
    found = None
    for alone in LETTER.finditer(text):
        if alone[1].upper() in letters and not _is_word(text, alone, "AI"):
            found = alone[1].upper()
    return found


def _is_word(text: str, found: re.Match[str], words: str) -> bool:
    """True if a letter is a word of a sentence, as in "A dog"."""
    return found[1] in words and ARTICLE.match(text, found.end()) is not None
