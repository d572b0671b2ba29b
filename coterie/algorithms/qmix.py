"""QMIX: a team's value that may be any mixture of its roles', as long as no role's good is the team's harm."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from coterie.algorithms.vdn import Vdn
from coterie.rl.mixers import Monotonic


@dataclass(frozen=True, kw_only=True)
class Qmix(Vdn):
    """VDN with a monotonic network in place of the sum: how much a role's utility counts depends on the state.
    For teams whose roles matter more in some situations than in others; where a plain sum fits, VDN learns faster.
    Costs what VDN costs, and networks that make the mixture's weights out of the state. (QMIX: arXiv 1803.11485)"""

    def mixing(self, roles: int, features: int) -> nn.Module:
        return Monotonic(roles, features, self.width)
