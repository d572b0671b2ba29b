"""Asynchronous training with a fixed lag: step s is played with the weights of step s − k.

The lag follows from the step alone, so a run is reproducible however fast its workers are: nothing is cancelled or
dropped. The algorithm corrects for it with truncated importance weights.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from coterie.cluster.learners import LearnerGroup
from coterie.cluster.rollout_pool import Pushed, Rollout, RolloutPool
from coterie.training.loop import Plan, Run
from coterie.types import Episode, Learner

Begun = tuple[list[Episode], Rollout]


class Ahead:
    """The rollouts already begun, of this step and later ones, and the weights that each is played with."""

    def __init__(self, lag: int, pool: RolloutPool, group: LearnerGroup) -> None:
        self.lag, self.pool, self.group = lag, pool, group
        self.run: Run | None = None  # set once the run is built
        self.begun: dict[int, Begun] = {}  # by the seed of the step

    def take(self, seed: int, begin: Callable[[Plan, Pushed], Begun]) -> Begun | None:
        """The rollout of the current step; also begins those of the next `lag` steps. None if the seed is not that of a
        training step, as in an evaluation."""
        run, earlier = self.run, self.group.earlier
        if run is None or self.lag == 0 or seed != run.plan(run.step).seed:
            return None
        earlier[run.step] = self.pool.weights
        for step in [step for step in earlier if step < run.step - self.lag]:
            del earlier[step]
        for step in range(run.step, min(run.step + self.lag + 1, run.config.steps)):
            plan = run.plan(step)
            if plan.seed not in self.begun:
                self.begun[plan.seed] = begin(plan, earlier[max(0, step - self.lag)])
        return self.begun.pop(seed)

    @property
    def weights(self) -> Pushed:
        """The weights with which the current step is played."""
        assert self.run is not None
        return self.group.earlier.get(max(0, self.run.step - self.lag), self.pool.weights)

    def versions(self, learners: Mapping[str, Learner]) -> dict[str, int]:
        """The weight versions with which the current step is played, by policy."""
        own = {policy: learner.version for policy, learner in learners.items()}
        return own | {policy: version for policy, (version, _) in self.weights.items()} if self.lag else own

    def forget(self) -> None:
        """Drop all rollouts, when learners go back to a checkpoint; results of running chunks will be ignored."""
        self.begun.clear()
        self.pool.rollouts.clear()
