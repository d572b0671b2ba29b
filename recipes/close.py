"""A reward of one's own in one file: full marks for the right number, part of them for one near it."""

from coterie.rewards.answers import last_number


def close(answer: str, truth: str) -> float:
    """1 for the right number; less than a half for one that is off by less than ten; else 0."""
    said = last_number(answer)
    if said is None:
        return 0.0
    off = abs(float(said) - float(truth))
    return 1.0 if off == 0 else 0.5 * max(0.0, 1 - off / 10)
