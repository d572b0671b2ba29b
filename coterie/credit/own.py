"""Own credit: each turn gets the reward that the workflow or the environment gave it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from coterie.credit.base import Credit, adds_later_credit, last_turns, own_reward, set_credit
from coterie.types import Counterfactuals, Episode, Metrics


@dataclass(frozen=True, kw_only=True)
class Own(Credit):
    """The turns' own rewards; a role without any gets nothing, or with `share_reward` the team's reward."""

    share_reward: bool = False  # give the team's reward to roles that have no reward of their own

    @property
    def uses_team_reward(self) -> bool:
        return self.share_reward

    def problems(self, config: Any) -> Iterator[tuple[str, str]]:
        yield from super().problems(config)
        if getattr(config.workflow.instance, "judges_turns", False) and adds_later_credit(config.algorithm.instance):
            complete = f"{config.workflow.name} gives each turn its complete reward"
            yield "algorithm.gamma_turn", f"must be 0: {complete}, and later rewards would count twice"

    def write_credit(self, episodes: Sequence[Episode], counterfactuals: Counterfactuals, team_chain: bool) -> Metrics:
        for episode in episodes:
            rewarded = {turn.role for turn in episode.turns if turn.reward is not None}
            for turn in episode.turns:
                set_credit(turn, own=own_reward(turn))
            without = [turn for turn in episode.turns if turn.role not in rewarded] if self.share_reward else []
            for turn in last_turns(without, team_chain):
                set_credit(turn, team=episode.reward)
        return {}
