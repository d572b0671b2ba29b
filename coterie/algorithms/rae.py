"""RAE, role-conditioned advantage estimation: the baseline is a moving average per role and opponent."""

from __future__ import annotations

from dataclasses import dataclass

from coterie.algorithms.group_estimator import Baseline, Scale
from coterie.algorithms.grpo import Grpo
from coterie.rl.groups import GroupBy


@dataclass(frozen=True, kw_only=True)
class Rae(Grpo):
    """REINFORCE with a running average for every role, and for every opponent it meets, as its baseline.
    For self-play in games that favour a seat: what the first player wins by being first teaches it nothing.
    Costs one episode per task at the least, and no critic. (SPIRAL, arXiv 2506.24119)"""

    group_by: tuple[GroupBy, ...] = ("role", "opponents")
    baseline: Baseline = "ema"
    scale: Scale = "none"
