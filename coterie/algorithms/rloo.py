"""RLOO: the baseline is the leave-one-out mean, of the other samples in the group."""

from __future__ import annotations

from dataclasses import dataclass

from coterie.algorithms.group_estimator import Baseline, Scale
from coterie.algorithms.grpo import Grpo


@dataclass(frozen=True, kw_only=True)
class Rloo(Grpo):
    """REINFORCE with a leave-one-out baseline: the mean of the group's *other* samples, so the gradient is unbiased.
    For small groups, where including the sample in its own mean shrinks advantages, and where scaling is not wanted.
    Costs what GRPO costs. (RLOO, arXiv 2402.14740)"""

    baseline: Baseline = "others"
    scale: Scale = "none"
