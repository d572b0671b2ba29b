"""Reject NaN and infinite rewards and metrics: one NaN would poison every weight it reaches."""

from __future__ import annotations

import math
from numbers import Real

from coterie.errors import UserError
from coterie.types import Episode

OURS = frozenset(
    ("step", "time", "reward", "failed", "tokens_per_second")
)  # metrics that the training step logs itself


class NotFinite(UserError, RuntimeError):
    """A gradient that is NaN or infinite."""


def must_be_numbers(episode: Episode) -> None:
    """Refuse rewards and metrics that are not finite numbers."""
    found = {"its reward": episode.reward}
    found |= {f"the reward of {turn.role}'s turn": turn.reward for turn in episode.turns if turn.reward is not None}
    for what, number in (found | {f"its metric {name}": value for name, value in episode.metrics.items()}).items():
        if not isinstance(number, Real) or not math.isfinite(number):
            raise ValueError(f"{what} is {number!r}; a finite number was expected")
    if taken := OURS & episode.metrics.keys():
        raise ValueError(f"a metric may not be called {', '.join(sorted(taken))}: the run has one of that name")
