"""The team's reward is made of what its roles were given."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from coterie.credit.base import Credit, last_turns, need_own, rounds_of
from coterie.rl.credit import Mode, Rounds, aggregated
from coterie.types import Episode, Metrics, Turn


@dataclass(frozen=True, kw_only=True)
class Aggregate(Credit):
    """Rounds are worth the sum, maximum or mean of what the roles were given in them, the same to everyone; or what
    the first role to speak was given; or to each its own. The episode's own reward is left aside.

        dense          every turn earns what its round is worth
        sparse         each role's last turn earns what the last round is worth
        accumulative   every turn earns its round and all later ones; `algorithm.gamma_turn` must be 0 then
    """

    mode: Mode = "sum"
    when: Literal["dense", "sparse", "accumulative"] = "dense"

    @property
    def looks_ahead(self) -> bool:
        return self.when == "accumulative"

    def rounds(self, episode: Episode) -> Rounds:
        """What each role's turns are worth before they are put together."""
        return rounds_of(episode)

    def earn(self, episodes: Sequence[Episode], counterfactuals: Mapping[str, Episode], once: bool) -> Metrics:
        need_own(episodes, self._name)
        for episode in episodes:
            rounds = self.rounds(episode)
            for turn in episode.turns:
                turn.credit = 0.0
            for turn in self._paid(episode, once and self.mode != "own"):
                worth = [aggregated(given, self.mode, turn.role, episode.turns[0].role) for given in rounds]
                turn.credit = self._earned(worth, turn.round)
        return {}

    def _paid(self, episode: Episode, once: bool) -> list[Turn]:
        """The turns at which rewards stand."""
        if self.when == "sparse":
            return last_turns(episode.turns, once)
        if self.when == "dense" and once:
            return list({turn.round: turn for turn in episode.turns}.values())
        return episode.turns

    def _earned(self, worth: Sequence[float], t: int) -> float:
        if self.when == "sparse":
            return worth[t if self.mode == "own" else -1]
        return worth[t] if self.when == "dense" else sum(worth[t:])
