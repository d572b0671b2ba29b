"""RLOO: the baseline is the leave-one-out mean, of the other samples in the group."""

from __future__ import annotations

from dataclasses import dataclass

from coterie.algorithms.group_estimator import Baseline, Scale
from coterie.algorithms.grpo import Grpo


@dataclass(frozen=True, kw_only=True)
class Rloo(Grpo):
    """REINFORCE with the mean of the *other* samples of the group as its baseline, which keeps the gradient unbiased.
    For small groups, where GRPO's own sample in its own mean takes much away, and where scaling is not wanted.
    Costs what GRPO costs. (RLOO, arXiv 2402.14740)"""

    baseline: Baseline = "others"
    scale: Scale = "none"
