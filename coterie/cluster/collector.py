"""The rollout on a cluster: episodes in chunks on the pool, weights pushed to it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from coterie.cluster.ahead import Ahead, Begun
from coterie.cluster.learners import LearnerGroup, Pushed
from coterie.cluster.rollout_pool import Rollout, RolloutPool
from coterie.cluster.rollout_worker import Chunk
from coterie.rollout.agent import FixedTurns, Players
from coterie.rollout.collector import Collector, new_episodes
from coterie.rollout.scoring import BACKOFF
from coterie.training.loop import Plan
from coterie.types import Episode, Learner, Metrics, Sample, Task, Weights


@dataclass(frozen=True)
class PushingEngine:
    """The driver's stand-in for the engines of the rollout workers: pushes changed weights to them."""

    pool: RolloutPool
    group: LearnerGroup

    async def sample(self, policy: str, *_: Any, **__: Any) -> Sample:
        raise RuntimeError(f"{policy} was sampled in the driver; on a cluster only rollout workers have its weights")

    def weights_changed(self, policy: str, version: int, weights: Weights | None = None) -> None:
        if policy in self.group.changed:
            self.pool.push(policy, version, self.group.weights(policy))
            self.group.changed.discard(policy)

    def clear(self) -> None:
        """Nothing to do: the workers clear their KV caches before they load weights."""


@dataclass(frozen=True, kw_only=True)
class ClusterCollector(Collector):
    """Plays tasks on the pool; ids, seeds and order of the episodes are those of one process."""

    pool: RolloutPool
    ahead: Ahead
    chunk: int
    patience: float

    def collect(self, tasks: Sequence[Task], repeats: int, players: Players, seed: int) -> list[Episode]:
        def begin(plan: Plan, weights: Pushed) -> Begun:
            return self._begin(new_episodes(plan.tasks, repeats, plan.seed), {}, plan.players, weights)

        begun = self.ahead.take(seed, begin) or begin(Plan(list(tasks), players, seed), self.pool.weights)
        return self._finish(begun)

    def play_shares(self, episodes: Sequence[tuple[Episode, FixedTurns]], players: Players) -> list[Episode]:
        """Play forks (counterfactuals), with the weights that their origins were played with."""
        fixed = {episode.id: turns for episode, turns in episodes}
        return self._finish(self._begin([episode for episode, _ in episodes], fixed, players, self.ahead.weights))

    def versions(self, learners: Mapping[str, Learner]) -> dict[str, int]:
        return self.ahead.versions(learners)

    def metrics(self) -> Metrics:
        return {"cluster/idle_seconds": self.pool.take_idle()}

    def _begin(
        self, episodes: list[Episode], fixed: Mapping[str, FixedTurns], players: Players, weights: Pushed
    ) -> Begun:
        chunks = cut([(episode, fixed.get(episode.id, {})) for episode in episodes], self.chunk)
        rollout = Rollout(chunks, players, weights, [self._seconds(chunk) for chunk in chunks])
        self.pool.begin(rollout)
        return episodes, rollout

    def _finish(self, begun: Begun) -> list[Episode]:
        episodes, rollout = begun
        for episode, fields in zip(episodes, self.pool.finish(rollout), strict=True):
            vars(episode).update(fields)
        return episodes

    def _seconds(self, chunk: Chunk) -> float:
        """The deadline of a chunk: its episodes, played concurrently, then grading with all retries, then patience.
        If the environment has its own deadline, the episodes may be graded one after the other."""
        attempts = (1 + len(BACKOFF)) * (1 if self.score_deadline is not None else len(chunk))
        return self.deadline + attempts * (self.score_deadline or self.deadline) + sum(BACKOFF) + self.patience


def cut(episodes: Sequence[tuple[Episode, FixedTurns]], size: int) -> list[Chunk]:
    """Chunks of at least `size` episodes, except the last; neighbors of one task stay together."""
    chunks: list[list[tuple[Episode, FixedTurns]]] = []
    for _, group in groupby(episodes, key=lambda pair: pair[0].task.id):
        if not chunks or len(chunks[-1]) >= size:
            chunks.append([])
        chunks[-1] += group
    return list(chunks)
