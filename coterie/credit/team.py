"""Everyone earns what the team earned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from coterie.credit.base import Credit, last_turns, own
from coterie.types import Episode, Metrics


@dataclass(frozen=True, kw_only=True)
class Team(Credit):
    """The team's reward at each role's own last turn, on top of what turns were given themselves.

    With `turns: all` it stands at every turn; then `algorithm.gamma_turn` must be 0, or it would count many times.
    """

    turns: Literal["last", "all"] = "last"

    @property
    def looks_ahead(self) -> bool:
        return self.turns == "all"

    def earn(self, episodes: Sequence[Episode], counterfactuals: Mapping[str, Episode], once: bool) -> Metrics:
        for episode in episodes:
            for turn in episode.turns:
                turn.credit = own(turn)
            for turn in episode.turns if self.turns == "all" else last_turns(episode.turns, once):
                turn.credit = own(turn) + episode.reward
        return {}
