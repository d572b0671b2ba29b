"""Everyone earns what the team earned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from coterie.credit.base import Credit, last_turns, own
from coterie.types import Episode, Metrics


@dataclass(frozen=True, kw_only=True)
class Team(Credit):
    """The team's reward at each role's own last turn, on top of what turns were given themselves."""

    def assign(self, episodes: Sequence[Episode], otherwise: Mapping[str, Episode], once: bool) -> Metrics:
        for episode in episodes:
            for turn in episode.turns:
                turn.earned = own(turn)
            for turn in last_turns(episode, once):
                turn.earned = own(turn) + episode.reward
        return {}
