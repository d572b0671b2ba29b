"""What most of a team said."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence

from coterie.rewards.answer_extraction import NUMBER, last_number, pointed_out


def majority(answers: Sequence[str]) -> str:
    """The whole text of the first answer that agrees with the most others; a tie goes to the earliest."""
    votes = Counter(ballot(answer) for answer in answers)
    return max(answers, key=lambda answer: votes[ballot(answer)])


def ballot(answer: str) -> Hashable:
    """What an answer counts as: what it points out, as in a box, else its last number, else its text.

    "So 5." and "5.0" are one ballot. In a box only a lone number is read as one, because
    `\\frac{1}{2}` and `\\frac{3}{2}` end in the same.
    """
    box = pointed_out(answer)
    if box is not None and not NUMBER.fullmatch(box.strip()):
        return "".join(box.split())
    number = last_number(box or answer)
    return number if number is not None else answer.strip().casefold()
