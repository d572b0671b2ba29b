"""GRPO: a turn is good if it earned more than its peers."""

from __future__ import annotations

from dataclasses import dataclass

from coterie.algorithms.by_role import ByRole, RoleSettings

__all__ = ["Grpo", "RoleSettings"]


@dataclass(frozen=True, kw_only=True)
class Grpo(ByRole):
    """Holds what a turn earned against the mean of its peers, by default the same role's turns on the same task.
    The plain choice for a team with a verifiable reward; every setting can be another one for each role.
    Costs several episodes per task and no critic. (DeepSeekMath, arXiv 2402.03300)"""
