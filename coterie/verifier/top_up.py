"""Tops up questions with too few right or wrong answers, by the team and the grader of a config."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from coterie.config import Config, ConfigError
from coterie.config.conflicts import check_conflicts
from coterie.config.requirements import require_sandbox
from coterie.envs.base import attach_reward
from coterie.rollout.scoring import RETRYABLE, Scorer
from coterie.training.loop import Run
from coterie.training.models import chats_of
from coterie.training.tasks import load_tasks
from coterie.types import Env, Episode, Outcome, Task
from coterie.verifier.answers import Answer
from coterie.verifier.balance import Question, add_perturbed, short_of
from coterie.verifier.generate import Plan, Report, Variant, play_parts


@dataclass(frozen=True)
class Resampling:
    """How to sample more answers to questions with too few right or wrong ones."""

    team: Callable[[], Run]  # loads the team: only if a question is short
    episodes: int  # per question and variant, in each round
    variants: tuple[Variant, ...]
    rounds: int
    checkpoint: str | None
    showing: Callable[[Plan], AbstractContextManager[Report]]


@dataclass(frozen=True)
class References:
    """The tasks of a config with their reference answers, and its grader."""

    config: Config
    env: Env
    tasks: Mapping[str, Task]

    @classmethod
    def of(cls, config: Config) -> References:
        """The training tasks of a config. Loads no model."""
        check_conflicts(config, training=False)
        env = attach_reward(
            config.env.instance, config.reward.name, config.reward.options, config.rollout.score_deadline
        )
        require_sandbox(config, env)
        return cls(config, env, {task.id: task for task in load_tasks(env, "train", config)})

    def require(self, answers: Sequence[Answer]) -> None:
        """Reject answers to tasks that the config does not have, or whose question differs."""
        for answer in answers:
            task = self.tasks.get(answer.task)
            if task is None or task.prompt != answer.question:
                why = "no such task" if task is None else f"another question: {task.prompt[:60]!r}"
                raise ConfigError(f"env: the answers have the task {answer.task}, and the config has {why}")

    async def grade(self, task: str, text: str) -> float | None:
        """The reward of an answer to a task; None if the grader fails on it, also after retries."""
        episode = Episode(f"{task}/graded", self.tasks[task], 0)
        own_deadline = getattr(self.env, "own_deadline", False)
        deadline = None if own_deadline else self.config.rollout.score_deadline
        try:
            await Scorer(self.env, deadline).score(episode, Outcome(text))
        except RETRYABLE:
            return None
        return episode.reward

    def perturb(self, questions: Mapping[str, Question], k: int) -> None:
        """Add wrong answers that are made from right ones."""
        chats = chats_of(self.config)
        for answer in (answer for question in questions.values() for answer in question.right):
            if answer.policy not in chats:
                known = ", ".join(chats)
                raise ConfigError(
                    f"policies: the answers have the policy {answer.policy}, and the config has {known}; "
                    "--no-perturb needs no policy"
                )
        add_perturbed(questions, k, self.grade, chats)


def resample(
    questions: Mapping[str, Question], k: int, references: References, how: Resampling, folder: Path
) -> list[Answer]:
    """Play short questions again, a few rounds, and add the answers. Parts are kept in the folder."""
    found: list[Answer] = []
    run: Run | None = None
    for number in range(1, how.rounds + 1):
        tasks = tuple(references.tasks[question.task] for question in short_of(questions, k))
        if not tasks:
            break
        run = run or how.team()
        plan = Plan(references.config, tasks, how.episodes, how.variants, how.checkpoint, round=number)
        with how.showing(plan) as report:
            answers = play_parts(run, plan, folder / f"round-{number}", report)
        for answer in answers:
            questions[answer.question].add(answer)
        found += answers
    return found
