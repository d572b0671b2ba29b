"""Several rewards at once."""

from __future__ import annotations

from coterie.rewards.grading import COMPOSE, Composed, Grader, grader
from coterie.types import Weighted


def compose(deadline: float, *, parts: tuple[Weighted, ...]) -> Composed:
    """The weighted sum of several rewards; `deadline` is each one's.

    reward: {name: compose, parts: [{name: math, weight: 0.9}, {name: format, pattern: "^<think>", weight: 0.1}]}
    """
    if not parts:
        raise ValueError("reward compose: parts is empty; it wants rewards with their weights")
    return Composed(COMPOSE, {}, deadline, tuple(_part(place, part, deadline) for place, part in enumerate(parts)))


def _part(place: int, part: Weighted, deadline: float) -> tuple[float, Grader]:
    if part.name == "native":
        raise ValueError(f"reward compose: parts.{place}: an environment's own score cannot be a part of another")
    try:
        return part.weight, grader(part.name, part.options, deadline)
    except ValueError as error:
        raise ValueError(f"reward compose: parts.{place}: {error}") from None
