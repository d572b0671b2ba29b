"""Right when it picks the same letter."""

from __future__ import annotations

import re
from typing import Any

from coterie.rewards.answer_extraction import set_apart

LETTER = re.compile(r"(?<![\w'’\\])([A-Z]|(?<=\()[a-z](?=\)))(?![\w'’])")
OPENING = re.compile(r"[\s(\[*_]*+(?:option|choice|answer)?[\s(\[*_:]*+([A-Za-z])(?![\w'’])", re.IGNORECASE)
ARTICLE = re.compile(r"[^\S\n]+[a-z]")  # "A dog" and "I think" name no choice


def choice(
    answer: Any,
    truth: Any,
    *,
    letters: str = "ABCD",  # the letters to choose from
) -> float:
    """1 when the answer picks the reference's letter; a reference may be the letter's number, from 0."""
    wanted = (
        letters[truth] if isinstance(truth, int) and 0 <= truth < len(letters) else str(truth).strip(" ().").upper()
    )
    if len(wanted) != 1 or wanted not in letters:
        raise ValueError(f"reward choice: the reference {truth!r} is none of {', '.join(letters)}")
    return float(letter(str(answer), letters) == wanted)


def letter(text: str, letters: str = "ABCD") -> str | None:
    """The letter that a text picks, or None: the one its answer begins with, else the last that stands alone.

    "Answer: (b) Paris"  →  B      "A dog, so C."  →  C      "\\boxed{\\text{D}}"  →  D
    """
    answer = set_apart(text)
    start = OPENING.match(answer or text)
    if start and start[1].upper() in letters and not _is_word(answer or text, start, "a" if answer else "AIa"):
        return start[1].upper()
    found = None
    for alone in LETTER.finditer(text):
        if alone[1].upper() in letters and not _is_word(text, alone, "AI"):
            found = alone[1].upper()
    return found


def _is_word(text: str, found: re.Match[str], words: str) -> bool:
    """Whether a letter begins a sentence; in "the answer is A because", it does not."""
    return found[1] in words and ARTICLE.match(text, found.end()) is not None
