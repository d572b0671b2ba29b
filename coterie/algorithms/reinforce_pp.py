"""REINFORCE++: a turn is good if it earned more than a turn of its role earns on the whole."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from coterie.algorithms.base import NotNegative
from coterie.algorithms.grpo import Grpo
from coterie.rl.groups import Peer


@dataclass(frozen=True, kw_only=True)
class ReinforcePp(Grpo):
    """REINFORCE whose baseline and scale are those of all of a role's turns in the step, after the KL in the reward.
    For many tasks and few episodes of each, one is enough; easy tasks then look good and hard ones bad.
    Costs the reference's log-probs of every turn, and no critic. (REINFORCE++, arXiv 2501.03262)"""

    peers: tuple[Peer, ...] = ("batch", "role")
    kl: NotNegative = 0.01
    kl_in: Literal["loss", "reward"] = "reward"
