"""MAGRPO: the joint action of a round, all roles' messages, is compared with its siblings in a tree of rounds."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from coterie.algorithms.base import Algorithm, Chain
from coterie.algorithms.group_estimator import Baseline, Groups, Scale, group_advantages, write_advantages
from coterie.limits import CountFromTwo, Share
from coterie.rl.groups import GroupSample
from coterie.rl.trees import joint_actions, sampled_rounds, team_rounds, tree_returns
from coterie.types import Episode, Fork, Metrics, Turn


@dataclass(frozen=True, kw_only=True)
class Magrpo(Algorithm):
    """GRPO on a tree of joint actions: all roles share a round's return minus the mean of its siblings.
    For cooperative teams with parallel roles and a shared reward, over few rounds.
    Costs branches^(rounds − 1) times the episodes; every turn is trained on once. (MAGRPO, arXiv 2508.04652)"""

    baseline: Baseline = "mean"  # the siblings' mean, the mean of the others, or none
    decay: Share = 0.95  # how much of the moving average of `baseline: ema` is kept per step
    scale: Scale = "none"  # divide by the standard deviation of the siblings' returns, or not
    gamma_turn: Share = 1.0  # discount from a round to the next
    drop_constant: bool = False  # leave out groups whose returns are all equal (DAPO)
    drop_truncated: bool = False  # leave out truncated turns; their rewards still count in their group's baseline
    branches: CountFromTwo = 2  # actions that follow each one; also the least that a task begins with

    chain: ClassVar[Chain] = "team"
    not_in_advantage: ClassVar[frozenset[str]] = Algorithm.not_in_advantage | {"branches"}

    def problems(self, config: Any) -> Iterator[tuple[str, str]]:
        yield from super().problems(config)
        if self.decay != type(self).decay and self.baseline != "ema":
            yield "algorithm.decay", f"has no effect with baseline: {self.baseline}; it belongs to baseline: ema"
        if self.baseline == "ema":
            yield "algorithm.baseline", "ema needs groups that recur, and the siblings of a round never do"

    def compute_advantages(self, episodes: list[Episode], memory: dict[str, Any]) -> Metrics:
        groups = Groups.of(self.samples(episodes))
        advantages = group_advantages(groups, self.baseline, self.scale, self.decay, memory)
        return write_advantages(groups, advantages[:, None].unbind(), self.drop_constant, self.drop_truncated)

    def samples(self, episodes: Sequence[Episode]) -> list[GroupSample]:
        """Every joint action: the group is its parent's children, the reward its return in the tree."""
        nodes = joint_actions(episodes)
        rewards = {node.name: sum(self._reward(turn) for turn in node.turns) for node in nodes}
        node_returns = tree_returns(rewards, {node.name: node.parent for node in nodes}, self.gamma_turn)
        trained = [(n, tuple(turn for turn in n.turns if turn.dropped is None)) for n in nodes]
        return [
            GroupSample((("task", n.episode.task.id), ("after", n.parent)), n.episode, turns, node_returns[n.name])
            for n, turns in trained
            if turns
        ]

    def _reward(self, turn: Turn) -> float:
        """A turn's credit, less its KL penalty."""
        assert turn.credit is not None, "credit.assign comes before compute_advantages"
        return turn.credit - float(self.token_kl_penalty(turn).sum())

    def forks(self, episodes: list[Episode], learning: Collection[str]) -> list[Fork]:
        """The missing siblings of all joint actions; called again, as newly played rounds need siblings too."""
        played_forks = {(episode.origin, episode.fork) for episode in episodes}
        later = [(e, *joint) for e in episodes if e.error is None for joint in list(sampled_rounds(e).items())[1:]]
        trained = [(e, level) for e, level, turns in later if any(t.policy in learning and t.trainable for t in turns)]
        lacking = [*((e, level, self.branches - 1) for e, level in trained), *self._first_rounds(episodes)]
        return [
            Fork(episode, _purpose(level), _before(episode, level), draw)
            for episode, level, count in lacking
            if (episode.id, _purpose(level)) not in played_forks
            for draw in range(1, count + 1)
        ]

    def _first_rounds(self, episodes: list[Episode]) -> list[tuple[Episode, int, int]]:
        """Siblings of first rounds, for tasks that were played less than `branches` times."""
        begun = [episode for episode in episodes if episode.origin is None]
        by_task = {task: [e for e in begun if e.task.id == task] for task in dict.fromkeys(e.task.id for e in begun)}
        good = {task: [episode for episode in some if episode.error is None] for task, some in by_task.items()}
        return [(good[task][0], 0, self.branches - len(some)) for task, some in by_task.items() if good[task]]


def _purpose(level: int) -> str:
    return f"round {level}"


def _before(episode: Episode, level: int) -> dict[tuple[str, int], Turn]:
    """The turns before a round of the team."""
    rounds = zip(episode.turns, team_rounds(episode.turns), strict=True)
    return {(turn.role, turn.round): turn for turn, reached in rounds if reached < level}
