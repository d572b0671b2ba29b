"""Check the numbers that environments, workflows, credits and algorithms give, which users write: one NaN would poison
every weight it reaches."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from numbers import Real
from typing import Any

from torch import Tensor

from coterie.errors import LARGEST_NUMBER, BadReward, UserError
from coterie.types import Episode, Loss, Metrics, Scores, Turn

# Metrics that every step logs; and groups of them, such as `reward/<role>`.
RESERVED_METRICS = frozenset(
    ["step", "time", "reward", "failed", "tokens_per_second", "sampled_tokens", "groups", "stale", "collapse"]
)
RESERVED_GROUPS = frozenset(
    [
        "reward",
        "credit",
        "tokens",
        "truncated",
        "stderr",
        "seconds",
        "eval",
        "failed",
        "groups",
        "dropped",
        "absent",
        "critic",
    ]
)


class NotFinite(UserError, RuntimeError):
    """A gradient that is NaN or infinite."""


class BadLoss(UserError, ValueError):
    """A loss that is not one number per token, or that has no gradient."""


def require_per_token(function: Loss, loss: Any, scores: Scores, tokens: int) -> None:
    """Raise BadLoss if a loss is not [tokens]: a scalar would be broadcast over the weights. Or if it has no gradient
    although the scores have one."""
    name = getattr(function, "__qualname__", repr(function))
    if not isinstance(loss, Tensor) or loss.shape != (tokens,):
        got = f"a tensor of shape {list(loss.shape)}" if isinstance(loss, Tensor) else f"a {type(loss).__name__}"
        raise BadLoss(f"{name} returned {got}, expected [{tokens}], one number per token")
    if not loss.requires_grad and any(column.requires_grad for column in vars(scores).values() if column is not None):
        raise BadLoss(f"{name} returned a loss without a gradient; compute it from scores.logprobs, without detach()")


def require_finite(episode: Episode) -> None:
    """Raise BadReward for rewards and metrics of an episode that are not finite numbers, or too large."""
    found = {"its reward": episode.reward}
    found |= {f"the reward of {turn.role}'s turn": turn.reward for turn in episode.turns if turn.reward is not None}
    for what, number in (found | {f"its metric {name}": value for name, value in episode.metrics.items()}).items():
        if not isinstance(number, Real) or not abs(number) <= LARGEST_NUMBER:  # NaN is not
            right = f"a finite number was expected, at most {LARGEST_NUMBER:g} in size"
            raise BadReward(f"{what} is {number!r}; {right}")
    names = episode.metrics.keys()
    grouped = {name for name in names if "/" in name and name.partition("/")[0] in RESERVED_GROUPS}
    if taken := (RESERVED_METRICS & names) | grouped:
        raise BadReward(f"a metric may not be called {', '.join(sorted(taken))}: the run has one of that name")


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
