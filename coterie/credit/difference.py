"""Difference rewards: the team's reward minus a counterfactual without the role; also leave-one-out and Shapley."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, Literal

from coterie.credit.base import Credit, adds_later_credit, last_turns, own_reward, set_credit
from coterie.rl.credit import shapley_values
from coterie.statistics import mean
from coterie.types import Counterfactuals, Episode, Fork, Metrics, Turn

MOST_ROLES = 4  # of a team with `by: shapley`
MOST_TURNS = 256  # a replaced role may be asked more often than it was in the episode


@dataclass(frozen=True, kw_only=True)
class Difference(Credit):
    """The team's reward minus a counterfactual without the role (a difference reward), at the role's last turn.

        replay          play the episode again with the role's messages replaced by `default`: D = R − R(without it).
                        The other roles are sampled with the same noise. One more episode per role
        shapley         play all coalitions of up to four roles: the role's marginal contribution, averaged over all
                        orders. 2ⁿ − 1 more episodes; the values sum to R − R(no role)
        leave_one_out   the reward minus the mean of the task's other episodes: nothing more is played, and all roles
                        get the same

    A role whose counterfactual failed gets nothing for that episode; `difference/missing` counts them.
    """

    by: Literal["replay", "leave_one_out", "shapley"] = "replay"  # how the counterfactual is made; see above
    default: str = ""  # what the role says in the counterfactual

    def problems(self, config: Any) -> Iterator[tuple[str, str]]:
        yield from super().problems(config)
        algorithm = config.algorithm.instance
        if self.by == "leave_one_out" and self.default:
            yield "credit.default", "has no effect with by: leave_one_out, which replaces no message"
        if self.by == "leave_one_out" and config.episodes_per_task < 2:
            yield "episodes_per_task", "is 1, so there is no other episode to compare with"
        if self.by == "shapley" and len(config.roles) > MOST_ROLES:
            yield "credit.by", f"shapley plays every coalition of up to {MOST_ROLES} roles, not of {len(config.roles)}"
        if self.by != "leave_one_out" and algorithm.chain == "team" and adds_later_credit(algorithm):
            mixed = "adds later credit along the whole team, which would mix the differences again"
            yield "credit", f"{type(algorithm).__name__} {mixed}; use algorithm.gamma_turn: 0"

    def forks(self, episodes: Sequence[Episode]) -> list[Fork]:
        played = [episode for episode in episodes if episode.error is None]
        return [self._without(e, silent) for e in played for silent in self._silenced(roles_of(e))]

    def write_credit(self, episodes: Sequence[Episode], counterfactuals: Counterfactuals, team_chain: bool) -> Metrics:
        missing = 0
        for episode in episodes:
            differences = self._differences(episode, episodes, counterfactuals)
            for turn in episode.turns:
                set_credit(turn, own=own_reward(turn))
            for turn in last_turns(episode.turns, team_chain and self.by == "leave_one_out"):
                set_credit(turn, own=own_reward(turn), difference=differences.get(turn.role, 0.0))
                missing += turn.role not in differences
        return {} if self.by == "leave_one_out" else {"difference/missing": float(missing)}

    def _differences(
        self, episode: Episode, episodes: Sequence[Episode], counterfactuals: Counterfactuals
    ) -> dict[str, float]:
        """By role; a role whose counterfactual is missing is left out."""
        roles = roles_of(episode)
        if self.by == "leave_one_out":
            others = [e for e in episodes if e.task.id == episode.task.id and e is not episode]
            compared = {role: [e.reward for e in others if not is_dropped(e, role)] for role in roles}
            return {role: episode.reward - mean(some) if some else 0.0 for role, some in compared.items()}
        forks = {silent: self._without(episode, silent).id for silent in self._silenced(roles)}
        rewards = {silent: counterfactuals[id].reward for silent, id in forks.items() if id in counterfactuals}
        if self.by == "replay":
            return {role: episode.reward - rewards[(role,)] for role in roles if (role,) in rewards}
        if len(rewards) < len(forks):
            return {}
        by_coalition = {frozenset(roles) - set(silent): reward for silent, reward in rewards.items()}
        return shapley_values(by_coalition | {frozenset(roles): episode.reward}, roles)

    def _silenced(self, roles: Sequence[str]) -> list[tuple[str, ...]]:
        """The sets of roles whose messages are replaced, one counterfactual each."""
        sizes = {"leave_one_out": range(0), "replay": range(1, 2), "shapley": range(1, len(roles) + 1)}[self.by]
        return [silent for size in sizes for silent in combinations(roles, size)]

    def _without(self, episode: Episode, silent: Collection[str]) -> Fork:
        """The counterfactual in which these roles say the default. Turns sampled before any of them had spoken do not
        depend on them, and are replayed as they were."""
        fixed: dict[tuple[str, int], Turn | str] = {}
        for turn in episode.turns:
            if not any(episode.turns[i].role in silent for i in turn.seen):
                fixed[turn.role, turn.round] = turn
        fixed |= {(role, nth): self.default for role in silent for nth in range(MOST_TURNS)}
        return Fork(episode, f"without {', '.join(map(repr, silent))}", fixed)


def is_dropped(episode: Episode, role: str) -> bool:
    """True if all turns of the role are dropped from training."""
    own = [turn for turn in episode.turns if turn.role == role]
    return bool(own) and all(turn.dropped is not None for turn in own)


def roles_of(episode: Episode) -> tuple[str, ...]:
    """The roles in order of their first turn."""
    return tuple(dict.fromkeys(turn.role for turn in episode.turns))
