"""A role earns more if the others did better after it spoke."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from coterie.credit.aggregate import Aggregate
from coterie.credit.base import rounds_of
from coterie.rl.credit import Mode, Rounds, influenced
from coterie.types import Episode


@dataclass(frozen=True, kw_only=True)
class Influence(Aggregate):
    """What a turn was given itself, and a bonus of `weight` if the other roles' own rewards rise from its round to the
    next, or as much less if they fall (MAVERL). What comes of it is put together as in `aggregate`."""

    mode: Mode = "own"
    weight: float = 0.2

    def problems(self, config: Any) -> Iterator[tuple[str, str]]:
        yield from super().problems(config)
        if self.weight == 0:
            yield "credit.weight", "is 0, so nobody earns more for it; credit: aggregate is the same"
        if len(config.roles) < 2:
            yield "credit", "influence has no effect: one role has nobody to influence"

    def rounds(self, episode: Episode) -> Rounds:
        return influenced(rounds_of(episode), self.weight)
