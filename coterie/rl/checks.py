"""Check what algorithms and credits have written and returned: users write their own."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from numbers import Real
from typing import Any

from torch import Tensor

from coterie.errors import UserError
from coterie.types import Episode, Metrics, Turn


class BadResult(UserError, ValueError):
    """An algorithm or a credit returned something other than metrics, or wrote something other than numbers."""


def checked_metrics(method: str, metrics: Any) -> Metrics:
    """The metrics that a method returned; BadResult if it returned something else."""
    if not isinstance(metrics, Mapping):
        raise BadResult(f"{method} returned {metrics!r:.80}; it returns metrics, as {{'groups': 4.0}}, or {{}}")
    for name, value in metrics.items():
        if not isinstance(value, Real) and not (isinstance(value, Tensor) and value.numel() == 1):
            raise BadResult(f"{method} returned the metric {name} = {value!r:.80}; a number was expected")
    return dict(metrics)


def check_credit(credit: str, episodes: Sequence[Episode]) -> None:
    """Raise BadResult for a turn to train on that has no credit, and for credit that is not a finite number."""
    for turn, place in _places(episodes):
        if turn.credit is None and turn.trainable:
            raise BadResult(f"credit {credit} gave none to {place}; every turn needs a number, if only 0")
        if turn.credit is not None and not (isinstance(turn.credit, Real) and math.isfinite(turn.credit)):
            raise BadResult(f"credit {credit} gave {turn.credit!r:.80} to {place}; a finite number was expected")


def check_advantages(algorithm: str, episodes: Sequence[Episode]) -> None:
    """Raise BadResult for advantages and returns that are not one finite number per token of the reply."""
    for turn, place in _places(episodes):
        for name in ("advantages", "returns"):
            numbers = getattr(turn, name)
            if numbers is not None and (problem := _problem(numbers, len(turn.response_ids))):
                raise BadResult(f"{algorithm}.compute_advantages: the {name} of {place} are {problem}")


def _problem(numbers: Any, length: int) -> str | None:
    expected = f"expected a tensor of shape [{length}], a number per token of the reply"
    if not isinstance(numbers, Tensor):
        return f"of type {type(numbers).__name__}; {expected}"
    if numbers.shape != (length,):
        return f"of shape {list(numbers.shape)}; {expected}"
    finite = numbers.isfinite()
    return None if finite.all() else f"{numbers[~finite][0].item()} at some tokens; finite numbers were expected"


def _places(episodes: Sequence[Episode]) -> Iterator[tuple[Turn, str]]:
    """Every turn, and how an error names it."""
    return ((t, f"{t.role}'s turn {t.round + 1} of {episode.id}") for episode in episodes for t in episode.turns)
