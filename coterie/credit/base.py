"""Credit assignment: the team's reward and the turns' own rewards become one number per turn, `turn.credit`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any

from coterie.errors import UserError
from coterie.rl.validate import check_credit, checked_metrics
from coterie.statistics import mean
from coterie.types import Counterfactuals, Episode, Fork, Metrics, Turn


class NoOwnRewards(UserError, ValueError):
    """The credit uses the turns' own rewards, and no turn has one."""


@dataclass(frozen=True, kw_only=True)
class Credit:
    """A way to assign credit. The fields are the options in the config."""

    @property
    def includes_later_rewards(self) -> bool:
        """True if a turn's credit already includes later rewards: then `algorithm.gamma_turn` must be 0."""
        return False

    @property
    def uses_team_reward(self) -> bool:
        """True if credit includes the team's reward; False if it consists of the turns' own rewards alone."""
        return True

    def turn_reward(self, episode: Episode, turn: Turn) -> float:
        """A turn's immediate reward, before later rewards and baselines: `coterie check` shows it by role."""
        return own_reward(turn) + (episode.reward if self.uses_team_reward else 0.0)

    def problems(self, config: Any) -> Iterator[tuple[str, str]]:
        """Options that do not fit the rest of the config, as (dotted key, message)."""
        if self.includes_later_rewards and adds_later_credit(config.algorithm.instance):
            included = f"{self._name} already includes later rewards in the credit of each turn"
            yield "algorithm.gamma_turn", f"must be 0: {included}"

    def forks(self, episodes: Sequence[Episode]) -> list[Fork]:
        """Counterfactuals: episodes to play again with some turns fixed, for comparison."""
        return []

    def assign(self, episodes: Sequence[Episode], counterfactuals: Counterfactuals, team_chain: bool) -> Metrics:
        """Write `turn.credit` of every turn; each role's mean credit per episode is a metric.

        `counterfactuals`: the forks that were played, by id. `team_chain`: the algorithm adds later credit along the
        whole team's turns, so the team's reward must be at its last turn only, not at every role's.
        """
        written = self.write_credit(episodes, counterfactuals, team_chain)
        metrics = checked_metrics(f"{type(self).__name__}.write_credit", written)
        check_credit(type(self).__name__, episodes)
        return metrics | credit_metrics(episodes)

    def write_credit(self, episodes: Sequence[Episode], counterfactuals: Counterfactuals, team_chain: bool) -> Metrics:
        """The hook behind `assign`: write `turn.credit`, return metrics."""
        raise NotImplementedError

    @property
    def _name(self) -> str:
        return f"credit {type(self).__name__.lower()}"


def adds_later_credit(algorithm: Any) -> bool:
    """True if the algorithm adds the credit of later turns to that of earlier ones."""
    return "gamma_turn" not in {f.name for f in fields(algorithm)} or algorithm.gamma_turn > 0


def last_turns(turns: Sequence[Turn], team_chain: bool = False) -> list[Turn]:
    """Each role's last turn, or only the last turn of the team."""
    by_role = {"" if team_chain else turn.role: turn for turn in turns}
    return list(by_role.values())


def set_credit(turn: Turn, **parts: float) -> None:
    """Write a turn's credit as the sum of named parts, which are stored with it."""
    turn.credit_parts, turn.credit = parts, sum(parts.values())


def own_reward(turn: Turn) -> float:
    return 0.0 if turn.reward is None else turn.reward


def rewards_by_round(episode: Episode) -> list[dict[str, float]]:
    """The own rewards of each round by role; turns without one are missing."""
    rounds: list[dict[str, float]] = [{} for _ in range(1 + max((turn.round for turn in episode.turns), default=-1))]
    for turn in episode.turns:
        if turn.reward is not None:
            rounds[turn.round][turn.role] = turn.reward
    return rounds


def require_own_rewards(episodes: Sequence[Episode], name: str) -> None:
    """Raise where no turn has an own reward, though this credit uses nothing else."""
    turns = [turn for episode in episodes for turn in episode.turns]
    if turns and all(turn.reward is None for turn in turns):
        raise NoOwnRewards(
            f"{name}: no turn was given a reward of its own, and this credit uses nothing else. A workflow or an "
            "environment gives one by writing turn.reward; a workflow that answers {role: text} has each role graded"
        )


def credit_metrics(episodes: Sequence[Episode]) -> Metrics:
    """Each role's credit per episode, averaged over the episodes in which it has a turn: `credit/<role>`."""
    sums: dict[str, dict[int, float]] = {}
    for e, episode in enumerate(episodes):
        for turn in episode.turns:
            if turn.trainable:
                assert turn.credit is not None, "every turn needs credit, if only zero"
                by_episode = sums.setdefault(turn.role, {})
                by_episode[e] = by_episode.setdefault(e, 0.0) + turn.credit
    return {f"credit/{role}": mean(list(some.values())) for role, some in sums.items()}
