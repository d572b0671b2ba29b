"""RAE, role-conditioned advantage estimation: the baseline is a moving average per role and opponent."""

from __future__ import annotations

from dataclasses import dataclass

from coterie.algorithms.group_estimator import Baseline, Scale
from coterie.algorithms.grpo import Grpo
from coterie.rl.groups import GroupBy


@dataclass(frozen=True, kw_only=True)
class Rae(Grpo):
    """REINFORCE with a moving average of each role's return as its baseline, kept apart for each opponent.
    For self-play in games that favor a side: a role gets no advantage for winning from the better position.
    Costs at least one episode per task, and no critic. (SPIRAL, arXiv 2506.24119)"""

    group_by: tuple[GroupBy, ...] = ("role", "opponents")
    baseline: Baseline = "ema"
    scale: Scale = "none"
