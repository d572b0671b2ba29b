"""A role earns the difference that it made."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, Literal

from coterie.credit.base import Credit, flows_back, last_turns, own
from coterie.rl.credit import mean, shapley
from coterie.types import Episode, Fork, Metrics, Turn

MOST_ROLES = 4  # of a team whose coalitions are all played
MOST_TURNS = 256  # a silenced role may be asked more often than it was in the episode


@dataclass(frozen=True, kw_only=True)
class Difference(Credit):
    """The team's reward less what the team would have earned without the role, at the role's own last turn.

        replay          play the episode again with the role's messages replaced by `default`: D = R − R(without it).
                        The others meet the noise that they met. As many episodes more as there are roles
        shapley         play all coalitions, for teams of up to four: what the role adds to each, averaged over the
                        orders in which the team could gather. 2ⁿ − 1 episodes more; shares sum to R − R(nobody)
        leave_one_out   the reward less the mean of the task's other episodes: nothing is played, and roles are not
                        told apart

    A role whose comparison failed earns nothing for that episode; `difference/missing` counts them.
    """

    by: Literal["replay", "leave_one_out", "shapley"] = "replay"
    default: str = ""

    def problems(self, config: Any) -> Iterator[tuple[str, str]]:
        yield from super().problems(config)
        algorithm = config.algorithm.instance
        if self.by == "leave_one_out" and self.default:
            yield "credit.default", "has no effect with by: leave_one_out, which replaces nothing"
        if self.by == "leave_one_out" and config.episodes_per_task < 2:
            yield "episodes_per_task", "is 1, so there is no other episode to compare with"
        if self.by == "shapley" and len(config.roles) > MOST_ROLES:
            yield "credit.by", f"shapley plays every coalition of up to {MOST_ROLES} roles, not of {len(config.roles)}"
        if self.by != "leave_one_out" and algorithm.chain == "team" and flows_back(algorithm):
            mixed = "lets rewards flow back along the whole team, which would mix the differences again"
            yield "credit", f"{type(algorithm).__name__} {mixed}; algorithm.gamma_turn: 0 keeps them apart"

    def forks(self, episodes: Sequence[Episode]) -> list[Fork]:
        played = [episode for episode in episodes if episode.error is None]
        return [self._without(e, silent) for e in played for silent in self._silenced(roles_of(e))]

    def earn(self, episodes: Sequence[Episode], counterfactuals: Mapping[str, Episode], once: bool) -> Metrics:
        missing = 0
        for episode in episodes:
            differences = self._differences(episode, episodes, counterfactuals)
            for turn in episode.turns:
                turn.credit = own(turn)
            for turn in last_turns(episode.turns, once and self.by == "leave_one_out"):
                turn.credit = own(turn) + differences[turn.role] if turn.role in differences else own(turn)
                missing += turn.role not in differences
        return {} if self.by == "leave_one_out" else {"difference/missing": float(missing)}

    def _differences(
        self, episode: Episode, episodes: Sequence[Episode], counterfactuals: Mapping[str, Episode]
    ) -> dict[str, float]:
        """By role; a role whose comparison is not there is left out."""
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
        worth = {frozenset(roles) - set(silent): reward for silent, reward in rewards.items()}
        return shapley(worth | {frozenset(roles): episode.reward}, roles)

    def _silenced(self, roles: Sequence[str]) -> list[tuple[str, ...]]:
        """The sets of roles whose messages are replaced, each in an episode of its own."""
        sizes = {"leave_one_out": range(0), "replay": range(1, 2), "shapley": range(1, len(roles) + 1)}[self.by]
        return [silent for size in sizes for silent in combinations(roles, size)]

    def _without(self, episode: Episode, silent: Collection[str]) -> Fork:
        """The episode as it would have gone had these roles said the default. What was asked for before any of them
        had spoken cannot have depended on them, and stays as it was."""
        given: dict[tuple[str, int], Turn | str] = {}
        for turn in episode.turns:
            if not any(episode.turns[i].role in silent for i in turn.seen):
                given[turn.role, turn.round] = turn
        given |= {(role, nth): self.default for role in silent for nth in range(MOST_TURNS)}
        return Fork(episode, f"without {', '.join(map(repr, silent))}", given)


def is_dropped(episode: Episode, role: str) -> bool:
    """Whether nobody learns from anything that the role said in it."""
    own = [turn for turn in episode.turns if turn.role == role]
    return bool(own) and all(turn.dropped is not None for turn in own)


def roles_of(episode: Episode) -> tuple[str, ...]:
    """The roles that spoke, in the order in which they first did."""
    return tuple(dict.fromkeys(turn.role for turn in episode.turns))
