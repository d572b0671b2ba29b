"""Environments that pose a question and grade the answer."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any, Self

from coterie.rewards import Grader, grader
from coterie.types import Env, Episode, Split, Task

NATIVE = "native"  # the reward's name when an environment scores itself


class TaskEnv:
    """Questions without a world. What an answer is worth, the config's reward says.

    Subclasses are frozen dataclasses; their fields are their options in the config.
    """

    grade: Grader  # not an option: `graded` sets it

    def tasks(self, split: Split) -> Sequence[Task]:
        raise NotImplementedError

    def open(self, task: Task) -> None:
        return None

    async def score(self, episode: Episode) -> None:
        episode.reward = await self.grade(episode.answer, self.reference(episode.task))
        episode.metrics["right"] = float(episode.reward >= 1)

    def reference(self, task: Task) -> Any:
        """What the reward compares the answer with."""
        return task.answer

    def native(self, deadline: float) -> Grader:
        """The environment's own reward, where it has one."""
        raise ValueError(f"reward native: {type(self).__name__} has none of its own; exact, number or math may fit it")

    def with_grader(self, grade: Grader) -> Self:
        env = copy.copy(self)
        object.__setattr__(env, "grade", grade)  # the dataclass is frozen
        return env


def graded(env: Env, reward: str, options: Mapping[str, Any], deadline: float) -> Env:
    """The environment with the reward that the config names; `native` means that it scores itself."""
    if isinstance(env, TaskEnv):
        return env.with_grader(env.native(deadline) if reward == NATIVE else grader(reward, options, deadline))
    if reward != NATIVE:
        raise ValueError(
            f"reward {reward}: no effect, because {type(env).__name__} scores itself; write reward: native"
        )
    return env
