"""Environments that pose a question and grade the answer."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Mapping, Sequence
from typing import Any, Self

from coterie.rewards import TIMEOUTS, Grader, make_grader
from coterie.types import Env, Episode, Split, Task, Turn, is_correct

NATIVE = "native"  # the reward's name when an environment scores itself


class TaskEnv:
    """Questions without a world. What an answer is worth, the config's reward says.

    Subclasses are frozen dataclasses; their fields are their options in the config.
    """

    grade: Grader  # not an option: `graded` sets it

    def tasks(self, split: Split) -> Sequence[Task]:
        raise NotImplementedError

    @property
    def needs_sandbox(self) -> bool:
        """True if it executes what a model wrote."""
        return self.grade.needs_sandbox

    @property
    def own_deadline(self) -> bool:
        """True if `score` limits its own time; the grader does, and does not count how long an answer queues for it."""
        return type(self).score is TaskEnv.score

    def open(self, task: Task) -> Any:
        return None

    async def score(self, episode: Episode) -> None:
        """The reward of the team's answer; or, where the workflow answers for each role, of each role's own.

        A grader that hangs, dies or cannot be reached raises: the episode then has no score, and is no zero.
        """
        episode.metrics.setdefault(TIMEOUTS, 0.0)
        if is_by_role(episode):
            await self._score_roles(episode, episode.answer)
        else:
            episode.reward = await self._worth(episode, episode.answer)
        episode.metrics["right"] = float(is_correct(episode.reward))

    async def _score_roles(self, episode: Episode, answers: Mapping[str, Any]) -> None:
        """Each turn that answers is given its own reward; the team's is the mean of what its roles said last.

        `{solver: text}` grades the solver's last turn, `{solver: [text, text]}` one turn after the other.
        """
        turns = [turn for role, said in answers.items() for turn in _answering(episode, role, said)]
        texts = [text for said in answers.values() for text in (said if isinstance(said, list) else [said])]
        rewards = await asyncio.gather(*(self._worth(episode, text) for text in texts))
        for turn, reward in zip(turns, rewards, strict=True):
            turn.reward = reward
            episode.metrics[f"right/{turn.role}"] = float(is_correct(reward))  # of several the last one stays
        last = {turn.role: reward for turn, reward in zip(turns, rewards, strict=True)}
        episode.reward = sum(last.values()) / len(last)

    async def _worth(self, episode: Episode, answer: Any) -> float:
        return await self.grade(answer, self.reference(episode.task), episode.task)

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


def reward_of(env: Env) -> Grader | None:
    """The grader of the config's reward; None for an environment that scores itself."""
    return env.grade if isinstance(env, TaskEnv) else None


def is_by_role(episode: Episode) -> bool:
    """Whether the answer is one for each of several roles. Any other mapping is the reward's business."""
    answer = episode.answer
    return isinstance(answer, Mapping) and bool(answer) and set(answer) <= {turn.role for turn in episode.turns}


def _answering(episode: Episode, role: str, said: Any) -> list[Turn]:
    """The turns that a role's answers are of."""
    turns = [turn for turn in episode.turns if turn.role == role]
    if not isinstance(said, list):
        return turns[-1:]
    if len(said) != len(turns):
        raise ValueError(f"the workflow gives {len(said)} answers of {role}, which spoke {len(turns)} times")
    return turns


def graded(env: Env, reward: str, options: Mapping[str, Any], deadline: float) -> Env:
    """The environment with the reward that the config names; `native` means that it scores itself."""
    if isinstance(env, TaskEnv):
        return env.with_grader(env.native(deadline) if reward == NATIVE else make_grader(reward, options, deadline))
    if reward != NATIVE:
        raise ValueError(
            f"reward {reward}: no effect, because {type(env).__name__} scores itself; write reward: native"
        )
    return env
