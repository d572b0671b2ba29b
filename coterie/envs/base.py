"""Base class of environments that ask a question and score the answer with the config's reward."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Mapping, Sequence
from typing import Any, Self

from coterie.rewards import TIMEOUTS, Grader, make_grader
from coterie.types import Env, Episode, Split, Task, Turn, is_correct

NATIVE = "native"  # the reward of an environment that scores itself


class TaskEnv:
    """Tasks without a world, scored by the config's reward.

    Subclasses are frozen dataclasses; their fields are their options in the config.
    """

    grade: Grader  # not an option: `attach_reward` sets it

    def tasks(self, split: Split) -> Sequence[Task]:
        raise NotImplementedError

    @property
    def needs_sandbox(self) -> bool:
        """True if scoring executes code that a model wrote."""
        return self.grade.needs_sandbox

    @property
    def own_deadline(self) -> bool:
        """True if `score` enforces its own deadline, as the grader does; time in the grader's queue does not count."""
        return type(self).score is TaskEnv.score

    def open(self, task: Task) -> Any:
        return None

    async def score(self, episode: Episode) -> None:
        """Score the team's answer, or each role's own if the workflow returned a dictionary by role.

        Raises if the grader hangs or fails: the episode then has no score, which is not a reward of 0.
        """
        episode.metrics.setdefault(TIMEOUTS, 0.0)
        if is_by_role(episode):
            await self._score_roles(episode, episode.answer)
        else:
            episode.reward = await self._grade(episode, episode.answer)
        episode.metrics["accuracy"] = float(is_correct(episode.reward))

    async def _score_roles(self, episode: Episode, answers: Mapping[str, Any]) -> None:
        """Give each answering turn its own reward; the team's is the mean over the roles' last answers.

        `{solver: text}` scores the solver's last turn, `{solver: [text, text]}` its turns in order.
        """
        turns = [turn for role, answer in answers.items() for turn in _answering(episode, role, answer)]
        texts = [text for answer in answers.values() for text in (answer if isinstance(answer, list) else [answer])]
        rewards = await asyncio.gather(*(self._grade(episode, text) for text in texts))
        for turn, reward in zip(turns, rewards, strict=True):
            turn.reward = reward
            episode.metrics[f"accuracy/{turn.role}"] = float(is_correct(reward))  # the last one wins
        last = {turn.role: reward for turn, reward in zip(turns, rewards, strict=True)}
        episode.reward = sum(last.values()) / len(last)

    async def _grade(self, episode: Episode, answer: Any) -> float:
        return await self.grade(answer, self.reference(episode.task), episode.task)

    def reference(self, task: Task) -> Any:
        """The reference that the reward compares the answer with."""
        return task.answer

    def native(self, deadline: float) -> Grader:
        """The environment's own reward, if it has one."""
        raise ValueError(f"reward native: {type(self).__name__} has none of its own; exact, number or math may fit it")

    def with_grader(self, grade: Grader) -> Self:
        env = copy.copy(self)
        object.__setattr__(env, "grade", grade)  # the dataclass is frozen
        return env


def reward_of(env: Env) -> Grader | None:
    """The grader of the config's reward; None for an environment that scores itself."""
    return env.grade if isinstance(env, TaskEnv) else None


def is_by_role(episode: Episode) -> bool:
    """True if the answer is a dictionary by role. Any other mapping is passed to the reward as it is."""
    answer = episode.answer
    return isinstance(answer, Mapping) and bool(answer) and set(answer) <= {turn.role for turn in episode.turns}


def _answering(episode: Episode, role: str, answer: Any) -> list[Turn]:
    """The turns that a role's answers belong to."""
    turns = [turn for turn in episode.turns if turn.role == role]
    if not isinstance(answer, list):
        return turns[-1:]
    if len(answer) != len(turns):
        raise ValueError(f"the workflow returned {len(answer)} answers of {role}, which took {len(turns)} turns")
    return turns


def attach_reward(env: Env, reward: str, options: Mapping[str, Any], deadline: float) -> Env:
    """The environment with the config's reward; `native` means that it scores itself."""
    if isinstance(env, TaskEnv):
        return env.with_grader(env.native(deadline) if reward == NATIVE else make_grader(reward, options, deadline))
    if reward != NATIVE:
        scores = f"{type(env).__name__} scores itself"
        raise ValueError(f"reward {reward}: no effect, because {scores}; write reward: native")
    return env
