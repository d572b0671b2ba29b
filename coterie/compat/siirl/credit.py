"""siiRL's credit: every agent is rewarded at its own last token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from coterie.credit.base import Credit
from coterie.types import Counterfactuals, Episode, Metrics, Turn


@dataclass(frozen=True, kw_only=True)
class GraphCredit(Credit):
    """siiRL's credit: each turn's own reward. A turn without one gets that of the next turn that has one, or 0 with
    `share_reward_in_agent: false`."""

    share_reward_in_agent: bool = True  # a turn without a reward gets that of the next turn that has one, not 0

    def turn_reward(self, episode: Episode, turn: Turn) -> float:
        shared = episode.reward if self.share_reward_in_agent else 0.0
        return shared if turn.reward is None else turn.reward

    def write_credit(self, episodes: Sequence[Episode], counterfactuals: Counterfactuals, team_chain: bool) -> Metrics:
        for episode in episodes:
            for place, turn in enumerate(episode.turns):
                turn.credit = 0.0
                if turn.trainable:
                    turn.credit = self._reward(episode.turns, place)
        return {}

    def _reward(self, turns: Sequence[Turn], place: int) -> float:
        own = turns[place].reward
        if own is not None:
            return own
        if not self.share_reward_in_agent:
            return 0.0
        later = [turn.reward for turn in turns[place:] if turn.reward is not None and turn.trainable]
        earlier = [turn.reward for turn in turns[:place] if turn.reward is not None and turn.trainable]
        return (later or earlier[::-1] or [0.0])[0]
