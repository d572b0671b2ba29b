"""Aggregate credit: the sum, maximum or mean of the roles' own rewards in a round."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from coterie.credit.base import Credit, last_turns, require_own_rewards, rewards_by_round, set_credit
from coterie.rl.credit import Aggregation, Rounds, aggregate_round
from coterie.types import Counterfactuals, Episode, Metrics, Turn


@dataclass(frozen=True, kw_only=True)
class Aggregate(Credit):
    """The reward of a round is the sum, maximum or mean of the roles' own rewards in it, the same for every role; or
    that of the first role to speak; or each role's own. The episode's reward is not used.

        dense          every turn gets the reward of its round
        sparse         each role's last turn gets the reward of the last round
        accumulative   every turn gets its round's reward and all later ones; `algorithm.gamma_turn` must be 0 then
    """

    mode: Aggregation = "sum"  # how the roles' own rewards of a round become its reward
    when: Literal["dense", "sparse", "accumulative"] = "dense"  # which turns get it, and of which rounds; see above

    @property
    def includes_later_rewards(self) -> bool:
        return self.when == "accumulative"

    def rounds(self, episode: Episode) -> Rounds:
        """The own rewards by round and role, before they are aggregated."""
        return rewards_by_round(episode)

    def write_credit(self, episodes: Sequence[Episode], counterfactuals: Counterfactuals, team_chain: bool) -> Metrics:
        require_own_rewards(episodes, self._name)
        for episode in episodes:
            rounds = self.rounds(episode)
            for turn in episode.turns:
                set_credit(turn, round=0.0)
            for turn in self._paid_turns(episode, team_chain and self.mode != "own"):
                rewards = [aggregate_round(some, self.mode, turn.role, episode.turns[0].role) for some in rounds]
                set_credit(turn, round=self._turn_credit(rewards, turn.round))
        return {}

    def _paid_turns(self, episode: Episode, team_chain: bool) -> list[Turn]:
        """The turns that get a reward."""
        if self.when == "sparse":
            return last_turns(episode.turns, team_chain)
        if self.when == "dense" and team_chain:
            return list({turn.round: turn for turn in episode.turns}.values())
        return episode.turns

    def _turn_credit(self, rewards: Sequence[float], t: int) -> float:
        if self.when == "sparse":
            return rewards[t if self.mode == "own" else -1]
        return rewards[t] if self.when == "dense" else sum(rewards[t:])
