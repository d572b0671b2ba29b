"""PPO: a learned value says what was to be expected; credit flows back over the team, by tokens or by turns."""

from __future__ import annotations

from dataclasses import dataclass

from coterie.algorithms.base import Chain
from coterie.algorithms.chained import Chained


@dataclass(frozen=True, kw_only=True)
class Ppo(Chained):
    """PPO with GAE chained over all turns, whoever plays them: by token, or with `level: turn` by message.
    Where late turns depend on early ones; tokens for short turns, turns for long ones. One episode per task will do.
    Costs a forward for values, of a head on the trunk or of `critics`. (arXiv 1707.06347; MARFT, arXiv 2504.16129)"""

    @property
    def chain(self) -> Chain:
        return "team"
