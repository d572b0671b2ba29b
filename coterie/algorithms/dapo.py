"""DAPO: GRPO that leaves out what teaches nothing and lets rare tokens rise."""

from __future__ import annotations

from dataclasses import dataclass

from coterie.algorithms.base import Count, Positive
from coterie.algorithms.grpo import Grpo


@dataclass(frozen=True, kw_only=True)
class Dapo(Grpo):
    """GRPO with a higher upper clip, without groups that all earned the same and without turns that were cut off.
    For long reasoning, where entropy falls early and cut answers are punished for their length alone; where turns
    always fill their `max_tokens`, say `drop_cut: false`, or nothing is left to learn from.
    Costs a forward before the update for its several optimiser steps; what is left out is not sampled anew, so a
    step trains on fewer turns, counted as `dropped/constant` and `dropped/cut`. (DAPO, arXiv 2503.14476)"""

    clip_high: Positive | None = 0.28
    minibatches: Count = 4
    drop_constant: bool = True
    drop_cut: bool = True
