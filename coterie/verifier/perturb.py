"""Makes wrong answers of right ones: changes the last numbers of a text."""

from __future__ import annotations

import random
import re

from coterie.rewards.answer_extraction import NUMBER

STEPS = (1, 2, 3, 5, 10)  # how far a number is moved, in units of its last digit
MAX_DIGITS = 100


def perturb(text: str, draw: random.Random) -> str | None:
    """The text with another final number, or None if it has none.

    Mentions of the same number directly before the last one change with it, so that the text does not contradict
    itself: "so 3 + 4 = 7. The answer is 7." becomes "so 3 + 4 = 9. The answer is 9."
    """
    numbers = list(NUMBER.finditer(text))
    if not numbers or len(numbers[-1]["digits"]) > MAX_DIGITS:
        return None
    digits = moved(numbers[-1]["digits"], draw.choice(STEPS) * draw.choice((-1, 1)))
    for number in _mentions(numbers):  # from the end, so that earlier places stay
        text = text[: number.start("digits")] + digits + text[number.end("digits") :]
    return text


def moved(digits: str, step: int) -> str:
    """A number as text, moved by units of its last digit; up where it would become negative.

    "12", 3  →  "15"      "1,999", 1  →  "2,000"      "0.50", -5  →  "0.45"      "2", -3  →  "5"
    """
    whole, _, fraction = digits.partition(".")
    number = int(whole.replace(",", "") + fraction)
    changed = str(number + (step if number + step >= 0 else -step)).zfill(len(fraction) + 1)
    split = len(changed) - len(fraction)
    grouped = f"{int(changed[:split]):,}" if "," in whole else changed[:split]
    return f"{grouped}.{changed[split:]}" if fraction else grouped


def _mentions(numbers: list[re.Match[str]]) -> list[re.Match[str]]:
    """The last number, and the numbers before it while they are the same, from the end."""
    last, found = numbers[-1], list[re.Match[str]]()
    for number in reversed(numbers):
        if (number["minus"], number["digits"], number["below"]) != (last["minus"], last["digits"], last["below"]):
            break
        found.append(number)
    return found
