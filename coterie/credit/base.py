"""What each turn earned, out of the team's reward and the turns' own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from coterie.errors import UserError
from coterie.rl.credit import mean
from coterie.types import Episode, Fork, Metrics, Turn


class NothingToShare(UserError, ValueError):
    """Credit is made of the turns' own rewards, and no turn has one."""


@dataclass(frozen=True, kw_only=True)
class Credit:
    """A way to share rewards. The fields are the options in the config."""

    @property
    def looks_ahead(self) -> bool:
        """Whether what a turn earned already counts what came of it later; then it must not flow back once more."""
        return False

    @property
    def uses_team_reward(self) -> bool:
        """True if the team's reward counts, False if turns earn their own rewards alone."""
        return True

    def problems(self, config: Any) -> Iterator[tuple[str, str]]:
        """Options that do not fit the rest of the config, as (dotted key, what is wrong)."""
        if self.looks_ahead and flows_back(config.algorithm.instance):
            yield "algorithm.gamma_turn", f"must be 0: {self._name} already counts in each turn what came of it later"

    def forks(self, episodes: Sequence[Episode]) -> list[Fork]:
        """What would have happened otherwise: episodes to play again for comparison."""
        return []

    def assign(self, episodes: Sequence[Episode], counterfactuals: Mapping[str, Episode], once: bool) -> Metrics:
        """Write `turn.credit` of every turn; what each role earned in an episode, on average, is a metric.

        `counterfactuals`: the forks that were played, by id. `once`: rewards flow back along the whole team's turns,
        so what the team earned must stand at its last turn alone and not at every role's.
        """
        counts = self.earn(episodes, counterfactuals, once)
        return counts | earned(episodes)

    def earn(self, episodes: Sequence[Episode], counterfactuals: Mapping[str, Episode], once: bool) -> Metrics:
        """The hook behind `assign`: write `turn.credit`, and count what is worth counting."""
        raise NotImplementedError

    @property
    def _name(self) -> str:
        return f"credit {type(self).__name__.lower()}"


def flows_back(algorithm: Any) -> bool:
    """Whether what a turn earned also counts for earlier turns."""
    return "gamma_turn" not in {f.name for f in fields(algorithm)} or algorithm.gamma_turn > 0


def last_turns(turns: Sequence[Turn], once: bool = False) -> list[Turn]:
    """Each role's own last turn, or only the last of all."""
    by_role = {"" if once else turn.role: turn for turn in turns}
    return list(by_role.values())


def own(turn: Turn) -> float:
    """What the turn was given itself."""
    return 0.0 if turn.reward is None else turn.reward


def rounds_of(episode: Episode) -> list[dict[str, float]]:
    """What each role's turn of each round was given; a turn without a reward of its own is not in it."""
    rounds: list[dict[str, float]] = [{} for _ in range(1 + max((turn.round for turn in episode.turns), default=-1))]
    for turn in episode.turns:
        if turn.reward is not None:
            rounds[turn.round][turn.role] = turn.reward
    return rounds


def need_own(episodes: Sequence[Episode], name: str) -> None:
    """Complain where nobody was given a reward of its own, though credit is made of nothing else."""
    turns = [turn for episode in episodes for turn in episode.turns]
    if turns and all(turn.reward is None for turn in turns):
        raise NothingToShare(
            f"{name}: no turn was given a reward of its own, and there is nothing else to share. A workflow or an "
            "environment gives one by writing turn.reward; a workflow that answers {role: text} has each role graded"
        )


def earned(episodes: Sequence[Episode]) -> Metrics:
    """What each role earned in an episode, on average over those in which it spoke."""
    sums: dict[str, dict[int, float]] = {}
    for e, episode in enumerate(episodes):
        for turn in episode.turns:
            if turn.trainable:
                assert turn.credit is not None, "every turn earns something, if only zero"
                by_episode = sums.setdefault(turn.role, {})
                by_episode[e] = by_episode.setdefault(e, 0.0) + turn.credit
    return {f"credit/{role}": mean(list(some.values())) for role, some in sums.items()}
