"""Base class of environments that ask a question and score the answer with the config's reward."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Self

from coterie.errors import BadAnswer
from coterie.rewards import TIMEOUTS, Grader, make_grader
from coterie.rewards.verifier import open_source
from coterie.statistics import mean
from coterie.types import Env, Episode, Split, Task, Turn, is_correct

NATIVE = "native"  # the reward of an environment that scores itself
# Episode metrics of a verifier: its score of the answer, and whether it accepts the answer.
SCORE, ACCEPTED = "verifier/score", "verifier/accepted"


class GradedAnswer(NamedTuple):
    """The result of grading one answer."""

    reward: float
    correct: bool | None  # None: only a verifier scored it
    score: float | None = None  # the verifier's score


class TaskEnv:
    """Single-turn tasks (without a world), scored by the config's reward.

    Subclasses are frozen dataclasses; their fields are their options in the config.
    """

    # Not options: `attach_reward` sets them.
    grade: Grader
    labelled: TaskEnv | None = None  # if the reward is a verifier: this environment with the reward of its `labels`

    def tasks(self, split: Split) -> Sequence[Task]:
        raise NotImplementedError

    @property
    def needs_sandbox(self) -> bool:
        """True if scoring executes code that a model wrote."""
        return self.grade.needs_sandbox

    @property
    def own_deadline(self) -> bool:
        """True if `score` enforces its own deadline. The grader does, so that time in its queue does not count."""
        return type(self).score is TaskEnv.score

    def open(self, task: Task) -> Any:
        return None

    async def score(self, episode: Episode) -> None:
        """Score the team's answer, or each role's own if the workflow returned a dictionary by role.

        Raises if the grader hangs or fails: the episode then has no score, which is not a reward of 0.
        """
        episode.metrics.setdefault(TIMEOUTS, 0.0)
        if episode.answer is None:
            raise BadAnswer("the workflow returned None, which no reward can grade: end `run` with `return turn.text`")
        if is_by_role(episode):
            await self._score_roles(episode, episode.answer)
        else:
            grade = await self._grade(episode, episode.answer)
            self._write(episode, grade.reward, grade.correct, [grade])

    async def _score_roles(self, episode: Episode, answers: Mapping[str, Any]) -> None:
        """Give each answering turn its own reward; the team's is the mean over the roles' last answers.

        `{solver: text}` scores the solver's last turn, `{solver: [text, text]}` its turns in order.
        """
        turns = [turn for role, answer in answers.items() for turn in _answering(episode, role, answer)]
        texts = [text for answer in answers.values() for text in (answer if isinstance(answer, list) else [answer])]
        grades = await asyncio.gather(*(self._grade(episode, text) for text in texts))
        for turn, grade in zip(turns, grades, strict=True):
            turn.reward, turn.correct = grade.reward, grade.correct
            turn.score = turn.score if grade.score is None else grade.score
            if grade.correct is not None:
                episode.metrics[f"accuracy/{turn.role}"] = float(grade.correct)  # the last one wins
        last = list({turn.role: grade for turn, grade in zip(turns, grades, strict=True)}.values())
        reward = sum(grade.reward for grade in last) / len(last)
        known = [grade.correct for grade in last if grade.correct is not None]
        by_label = all(known) if len(known) == len(last) else None
        self._write(episode, reward, is_correct(reward) if self.grade.verifier is None else by_label, last)

    def _write(self, episode: Episode, reward: float, correct: bool | None, grades: Sequence[GradedAnswer]) -> None:
        """Write the reward of an episode and its metrics; `grades` are those of its final answers."""
        episode.reward, episode.correct = reward, correct
        if correct is not None:
            episode.metrics["accuracy"] = float(correct)
        scores = [grade.score for grade in grades if grade.score is not None]
        if scores:
            episode.metrics[SCORE] = mean(scores)
            episode.metrics[ACCEPTED] = mean([self.grade.verifier.accepts(score) for score in scores])

    async def _grade(self, episode: Episode, answer: Any) -> GradedAnswer:
        """Grade an answer. If a verifier scores it and the task has a reference answer, also label it."""
        task, verifier = episode.task, self.grade.verifier
        reward = await self.grade(answer, self.reference(task), task)
        if verifier is None:
            return GradedAnswer(reward, is_correct(reward))
        score = await verifier.score(answer, task)
        if self.labelled is None or self.labelled.reference(task) is None:
            return GradedAnswer(reward, None, score)
        return GradedAnswer(reward, (await self.labelled._grade(episode, answer)).correct, score)

    def reference(self, task: Task) -> Any:
        """The reference that the reward compares the answer with."""
        return task.answer

    def native(self, deadline: float) -> Grader:
        """The environment's own reward, if it has one."""
        raise ValueError(f"reward native: {type(self).__name__} has none of its own; exact, number or math may fit it")

    @property
    def needs_answers(self) -> bool:
        """True if a task without a reference answer cannot be scored."""
        return not hasattr(self, "grade") or self.grade.compares

    def open_models(self, device: str, deadline: float) -> dict[str, str]:
        """Load the verifier of the reward, if it has one; returns the hash of its model."""
        verifier = self.grade.verifier
        return {"reward": open_source(verifier.source, device, deadline)} if verifier is not None else {}

    def with_reward(self, reward: str, options: Mapping[str, Any], deadline: float) -> Self:
        """The environment with this reward and, for a verifier with `labels`, a second one that labels answers."""
        env = self.with_grader(self.native(deadline) if reward == NATIVE else make_grader(reward, options, deadline))
        verifier = env.grade.verifier
        if verifier is None or verifier.labels is None:
            return env
        if verifier.labels == verifier.name:
            raise ValueError("reward verifier: labels: a verifier cannot label its own answers; number or math may fit")
        object.__setattr__(env, "labelled", self.with_reward(verifier.labels, {}, deadline))
        return env

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
    """The turns of a role that its answers score: all for a list, the last one for a text."""
    turns = [turn for turn in episode.turns if turn.role == role]
    if not isinstance(answer, list):
        return turns[-1:]
    if len(answer) != len(turns):
        raise BadAnswer(f"the workflow returned {len(answer)} answers of {role}, which took {len(turns)} turns")
    return turns


def attach_reward(env: Env, reward: str, options: Mapping[str, Any], deadline: float) -> Env:
    """The environment with the config's reward; `native` means that it scores itself."""
    if isinstance(env, TaskEnv):
        return env.with_reward(reward, options, deadline)
    if reward != NATIVE:
        scores = f"{type(env).__name__} scores itself"
        raise ValueError(f"reward {reward}: no effect, because {scores}; write reward: native")
    return env
