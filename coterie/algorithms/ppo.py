"""PPO: a learned value says what was to be expected; credit flows back over the team, by tokens or by turns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from coterie.algorithms.chained import Chained


@dataclass(frozen=True, kw_only=True)
class Ppo(Chained):
    """PPO whose advantages (GAE) are chained over all turns of an episode, whoever plays them: token by token, or
    with `level: turn` message by message, with one value, one advantage and one ratio for each.
    Use it where a team works on one answer and late turns depend on early ones; tokens for short turns, turns for
    long ones. It trains with one episode per task.
    Costs one more forward a step to read values; the value head sits on the policy's own trunk, or in `critics`.
    (PPO: arXiv 1707.06347; chained over agents, by token and by action: MARFT, arXiv 2504.16129)"""

    chain: ClassVar[Literal["team", "role"]] = "team"
