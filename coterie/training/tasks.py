"""The task stream: epochs of shuffled tasks."""

from __future__ import annotations

import random
from collections.abc import Sequence

from coterie.seeds import stable_hash
from coterie.types import Task


class TaskStream:
    """An endless stream of shuffled epochs.

    Its state is one number, `drawn`, so that a resumed run gets the same tasks.
    """

    def __init__(self, tasks: Sequence[Task], count: int, seed: int) -> None:
        """`count`: tasks per step."""
        if not tasks:
            raise ValueError("the environment has no training tasks")
        self.tasks, self.count, self.seed, self.drawn = tasks, count, seed, 0
        self.shuffled: tuple[int, list[int]] = (-1, [])  # the epoch and its permutation

    def next(self) -> list[Task]:
        chosen = [self._at(i) for i in range(self.drawn, self.drawn + self.count)]
        self.drawn += self.count
        return chosen

    def _at(self, i: int) -> Task:
        epoch, place = divmod(i, len(self.tasks))
        return self.tasks[self._order(epoch)[place]]

    def _order(self, epoch: int) -> list[int]:
        if self.shuffled[0] != epoch:
            order = list(range(len(self.tasks)))
            random.Random(stable_hash(self.seed, "tasks", epoch)).shuffle(order)
            self.shuffled = epoch, order
        return self.shuffled[1]
