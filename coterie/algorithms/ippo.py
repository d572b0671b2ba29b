"""IPPO: independent PPO, every role learns as if it were alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from coterie.algorithms.base import Chain
from coterie.algorithms.ppo import Ppo


@dataclass(frozen=True, kw_only=True)
class Ippo(Ppo):
    """PPO for each role by itself: its own turns form its chain, and the other roles are part of its environment.
    Where roles have rewards or turns of their own and hardly depend on each other; the baseline of MAPPO and HAPPO.
    Costs what PPO costs. (arXiv 2011.09533)"""

    chain: ClassVar[Chain] = "role"
