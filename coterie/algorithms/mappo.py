"""MAPPO: every role learns by itself, judged by a critic who has heard everything."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from coterie.algorithms.ippo import Ippo


@dataclass(frozen=True, kw_only=True)
class Mappo(Ippo):
    """IPPO whose critic reads the joint context: the task, all that was said, and who is to speak.
    Where roles see different things, so that what is to be expected depends on what others know.
    Costs a critic of its own; where none is given, a LoRA with a head on the team's base. (arXiv 2103.01955)"""

    central_critic: ClassVar[bool] = True
