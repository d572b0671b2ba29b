"""Everyone earns what the workflow or the environment gave it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from coterie.credit.base import Credit, last_turns, own
from coterie.types import Episode, Metrics


@dataclass(frozen=True, kw_only=True)
class Own(Credit):
    """What turns were given themselves; a role that was given nothing earns nothing, or shares the team's reward."""

    share_reward: bool = False

    def earn(self, episodes: Sequence[Episode], otherwise: Mapping[str, Episode], once: bool) -> Metrics:
        for episode in episodes:
            given = {turn.role for turn in episode.turns if turn.reward is not None}
            for turn in episode.turns:
                turn.earned = own(turn)
            without = [turn for turn in episode.turns if turn.role not in given] if self.share_reward else []
            for turn in last_turns(without, once):
                turn.earned = episode.reward
        return {}
