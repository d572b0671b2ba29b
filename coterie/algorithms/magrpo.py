"""MAGRPO: what the team said together in a round is one action, compared with what it might have said instead."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from coterie.algorithms.base import Chain
from coterie.algorithms.group import Group, Scale
from coterie.limits import CountFromTwo
from coterie.rl.groups import Sample
from coterie.rl.trees import levels, returns, said, tree
from coterie.types import Episode, Fork, Turn


@dataclass(frozen=True, kw_only=True)
class Magrpo(Group):
    """GRPO on a tree of joint actions: all roles share the return of a round less the mean of its siblings.
    For cooperative teams that speak side by side and are rewarded as one, over few rounds.
    Costs branches^(rounds − 1) times the episodes; every turn is trained on once. (MAGRPO, arXiv 2508.04652)"""

    scale: Scale = "none"
    branches: CountFromTwo = 2  # actions that follow each one; also the least that a task begins with

    not_in_advantage: ClassVar[frozenset[str]] = Group.not_in_advantage | {"branches"}

    @property
    def chain(self) -> Chain:
        return "team"

    def problems(self, config: Any) -> Iterator[tuple[str, str]]:
        yield from super().problems(config)
        if self.baseline == "ema":
            yield "algorithm.baseline", "ema needs groups that come again, and the siblings of a round never do"

    def forks(self, episodes: list[Episode], learning: Collection[str]) -> list[Fork]:
        """What every joint action still lacks of children; asked again, what these children lack."""
        made = {(episode.origin, episode.fork) for episode in episodes}
        later = [(e, *joint) for e in episodes if e.error is None for joint in list(said(e).items())[1:]]
        taught = [(e, level) for e, level, turns in later if any(t.policy in learning and not t.given for t in turns)]
        lacking = [*((e, level, self.branches - 1) for e, level in taught), *self._beginnings(episodes)]
        return [
            Fork(episode, _purpose(level), _before(episode, level), draw)
            for episode, level, count in lacking
            if (episode.id, _purpose(level)) not in made
            for draw in range(1, count + 1)
        ]

    def _beginnings(self, episodes: list[Episode]) -> list[tuple[Episode, int, int]]:
        """Tasks that were played less often than a round branches begin more often."""
        begun = [episode for episode in episodes if episode.origin is None]
        first = {task: [e for e in begun if e.task.id == task] for task in dict.fromkeys(e.task.id for e in begun)}
        good = {task: [episode for episode in some if episode.error is None] for task, some in first.items()}
        return [(good[task][0], 0, self.branches - len(some)) for task, some in first.items() if good[task]]

    def samples(self, episodes: Sequence[Episode]) -> list[Sample]:
        nodes = tree(episodes)
        rewards = {node.name: sum(self._reward(turn) for turn in node.turns) for node in nodes}
        worth = returns(rewards, {node.name: node.parent for node in nodes}, self.gamma_turn)
        learned = [(n, tuple(turn for turn in n.turns if turn.dropped is None)) for n in nodes]
        return [Sample((n.episode.task.id, n.parent), n.episode, turns, worth[n.name]) for n, turns in learned if turns]

    def _reward(self, turn: Turn) -> float:
        """What a turn earned, less what leaving the reference cost it."""
        assert turn.earned is not None, "credit.assign comes before algorithm.credit"
        return turn.earned - float(self.token_penalty(turn).sum())


def _purpose(level: int) -> str:
    return f"round {level}"


def _before(episode: Episode, level: int) -> dict[tuple[str, int], Turn]:
    """All that was said before a round of the team."""
    rounds = zip(episode.turns, levels(episode.turns), strict=True)
    return {(turn.role, turn.round): turn for turn, reached in rounds if reached < level}
