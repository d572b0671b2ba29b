"""MAPPO: every role has its own chain, valued by a central critic that reads the joint context."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from coterie.algorithms.base import Chain
from coterie.algorithms.ppo import Ppo


@dataclass(frozen=True, kw_only=True)
class Mappo(Ppo):
    """IPPO with a central critic that reads the joint context: the task, all messages, and which role acts next.
    Where roles see different things, so that the expected return depends on what others know.
    Costs a critic of its own; where none is given, a LoRA with a head on the team's base. (arXiv 2103.01955)"""

    chain: ClassVar[Chain] = "role"
    central_critic: ClassVar[bool] = True
