"""Reject NaN, infinite and huge rewards and metrics: one NaN would poison every weight it reaches."""

from __future__ import annotations

from numbers import Real
from typing import Any

from torch import Tensor

from coterie.errors import LARGEST_NUMBER, BadReward, UserError
from coterie.types import Episode, Loss, Scores

# Metrics that every step logs; and groups of them, such as `reward/<role>`.
RESERVED_METRICS = frozenset(
    ("step", "time", "reward", "failed", "tokens_per_second", "sampled_tokens", "groups", "stale", "collapse")
)
RESERVED_GROUPS = frozenset(
    (
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
    )
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
