"""Token-level VDN: what the team is worth is the sum of what its roles are worth."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from coterie.algorithms.chained import Judged, chains
from coterie.algorithms.ippo import Ippo
from coterie.types import Episode


@dataclass(frozen=True, kw_only=True)
class VdnToken(Ippo):
    """IPPO whose values add up: a role's value at a token and the others' mean values over the episode make the
    team's, which is fitted to the team's return. So a role learns its own part of it, and its advantage is what the
    return leaves over when the others' parts are taken off, less its own value.
    Use it where the team's reward is roughly a sum of what roles contribute; for messages as a whole see vdn and qmix.
    Costs what PPO costs; for parts that really differ give every role a critic, or a policy with its own value head.
    (VDN: arXiv 1706.05296)"""

    def problems(self, config: Any) -> Iterator[tuple[str, str]]:
        yield from super().problems(config)
        if self.level == "turn":
            yield "algorithm.level", "is token for vdn_token; vdn and qmix share out the value of whole messages"

    def judged(self, episode: Episode) -> Iterator[Judged]:
        by_role = chains(episode, "role")
        parts = []
        for turns in by_role:
            values = [turn.values for turn in turns if turn.values is not None]
            parts.append(float(torch.cat(values).double().mean()) if values else 0.0)
        for turns, own in zip(by_role, parts, strict=True):
            yield from self.chained(turns, beside=sum(parts) - own)
