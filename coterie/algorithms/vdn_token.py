"""Token-level VDN: what the team is worth is the sum of what its roles are worth."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from coterie.algorithms.chained import Judged, chains
from coterie.algorithms.ippo import Ippo
from coterie.types import Episode, Turn


@dataclass(frozen=True, kw_only=True)
class VdnToken(Ippo):
    """IPPO whose values add up: a role's own and the others' parts make the team's, which is fitted to its return.
    Where the team's reward is roughly a sum of what roles contribute; for whole messages see vdn and qmix.
    Costs what PPO costs; for parts that differ give every role a critic or a head of its own. (arXiv 1706.05296)"""

    def problems(self, config: Any) -> Iterator[tuple[str, str]]:
        yield from super().problems(config)
        if self.level == "turn":
            yield "algorithm.level", "is token for vdn_token; vdn and qmix share out the value of whole messages"

    def judged(self, episodes: Sequence[Episode]) -> Iterator[Judged]:
        """Each role's advantage over its own part and the others' together: over its own alone, which is fitted to a
        share of the return, it would count what the others brought about as well."""
        parts = [_parts(episode.turns) for episode in episodes]
        roles = sorted({role for by_role in parts for role in by_role})  # sums that are the same every time
        total = {role: sum(by_role[role] for by_role in parts if role in by_role) for role in roles}
        for episode, own in zip(episodes, parts, strict=True):
            others = max(len(episodes) - 1, 1)
            usual = {role: (total[role] - own.get(role, 0.0)) / others for role in roles}
            for turns in chains(episode, "role"):
                yield from self.chained(turns, [_beside(turn, episode, usual) for turn in turns])


def _parts(turns: Sequence[Turn]) -> dict[str, float]:
    """Each role's mean value over the tokens that it said in these turns."""
    values: dict[str, list[Tensor]] = {}
    for turn in turns:
        if turn.values is not None and len(turn.values):
            values.setdefault(turn.role, []).append(turn.values)
    return {role: float(torch.cat(own).double().mean()) for role, own in values.items()}


def _beside(turn: Turn, episode: Episode, usual: Mapping[str, float]) -> float:
    """The others' parts, as far as they cannot depend on what the turn says: whoever speaks after it has read it, so
    of those counts what they are worth in the step's other episodes."""
    known = {**usual, **_parts([episode.turns[i] for i in turn.seen])}
    return sum(part for role, part in known.items() if role != turn.role)
