"""DAPO: GRPO with a higher upper clip, without constant groups and truncated turns."""

from __future__ import annotations

from dataclasses import dataclass

from coterie.algorithms.grpo import Grpo
from coterie.limits import Count, Positive


@dataclass(frozen=True, kw_only=True)
class Dapo(Grpo):
    """GRPO with a higher upper clip, without constant groups (all rewards equal) and without truncated turns.
    For long reasoning, where entropy collapses early; if turns always fill `max_tokens`, unset `drop_truncated`.
    Costs a forward pass for the old log-probs; `dropped/…` counts dropped turns. (DAPO, arXiv 2503.14476)"""

    clip_high: Positive | None = 0.28
    minibatches: Count = 4
    drop_constant: bool = True
    drop_truncated: bool = True
