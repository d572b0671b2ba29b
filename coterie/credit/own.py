"""Everyone earns what the workflow or the environment gave it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from coterie.credit.base import Credit, flows_back, last_turns, own
from coterie.types import Episode, Metrics


@dataclass(frozen=True, kw_only=True)
class Own(Credit):
    """What turns were given themselves; a role that was given nothing earns nothing, or shares the team's reward."""

    share_reward: bool = False

    @property
    def uses_team_reward(self) -> bool:
        return self.share_reward

    def problems(self, config: Any) -> Iterator[tuple[str, str]]:
        yield from super().problems(config)
        if getattr(config.workflow.instance, "judges_turns", False) and flows_back(config.algorithm.instance):
            worth = f"{config.workflow.name} gives each turn all that it was worth"
            yield "algorithm.gamma_turn", f"must be 0: {worth}, and what came later would count once more"

    def earn(self, episodes: Sequence[Episode], counterfactuals: Mapping[str, Episode], once: bool) -> Metrics:
        for episode in episodes:
            given = {turn.role for turn in episode.turns if turn.reward is not None}
            for turn in episode.turns:
                turn.credit = own(turn)
            without = [turn for turn in episode.turns if turn.role not in given] if self.share_reward else []
            for turn in last_turns(without, once):
                turn.credit = episode.reward
        return {}
