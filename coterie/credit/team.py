"""Team credit: every role gets the team's reward."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from coterie.credit.base import Credit, last_turns, own_reward, set_credit
from coterie.types import Counterfactuals, Episode, Metrics


@dataclass(frozen=True, kw_only=True)
class Team(Credit):
    """The team's reward at each role's own last turn, on top of the turns' own rewards.

    With `turns: all` every turn gets it; then `algorithm.gamma_turn` must be 0, or it would count many times.
    """

    turns: Literal["last", "all"] = "last"  # which turns get the team's reward: each role's last one, or all

    @property
    def includes_later_rewards(self) -> bool:
        return self.turns == "all"

    def write_credit(self, episodes: Sequence[Episode], counterfactuals: Counterfactuals, team_chain: bool) -> Metrics:
        for episode in episodes:
            for turn in episode.turns:
                set_credit(turn, own=own_reward(turn))
            for turn in episode.turns if self.turns == "all" else last_turns(episode.turns, team_chain):
                set_credit(turn, own=own_reward(turn), team=episode.reward)
        return {}
