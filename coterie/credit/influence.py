"""Influence credit (MAVERL): a bonus if the other roles do better in the next round."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from coterie.credit.aggregate import Aggregate
from coterie.credit.base import rewards_by_round
from coterie.rl.credit import Aggregation, Rounds, with_influence_bonus
from coterie.types import Episode


@dataclass(frozen=True, kw_only=True)
class Influence(Aggregate):
    """A turn's own reward, plus `weight` if the other roles' own rewards rise from its round to the next, minus
    `weight` if they fall (MAVERL). The results are aggregated as in `aggregate`."""

    mode: Aggregation = "own"
    weight: float = 0.2  # the bonus for raising the others' rewards

    def problems(self, config: Any) -> Iterator[tuple[str, str]]:
        yield from super().problems(config)
        if self.weight == 0:
            yield "credit.weight", "is 0, so there is no bonus; credit: aggregate is the same"
        if len(config.roles) < 2:
            yield "credit", "influence has no effect: a single role has no other to influence"

    def rounds(self, episode: Episode) -> Rounds:
        return with_influence_bonus(rewards_by_round(episode), self.weight)
