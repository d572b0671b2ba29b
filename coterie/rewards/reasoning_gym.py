"""What reasoning-gym's own scorer says."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import reasoning_gym
from reasoning_gym.dataset import ProceduralDataset

from coterie.rewards.grading import Grader
from coterie.rewards.gym_answers import EVALUATING, answer_in, is_in_grammar
from coterie.rewards.gym_sandbox import score_in_sandbox
from coterie.types import Task

SCORER = "coterie.rewards.reasoning_gym:native"


@dataclass(frozen=True)
class NativeGrader(Grader):
    """A dataset's own scorer, in the sandbox where it evaluates the answer. `truth` is the dataset's entry."""

    @property
    def needs_sandbox(self) -> bool:
        return self.options["dataset"] in EVALUATING

    async def __call__(self, answer: Any, truth: Any, task: Task | None = None) -> float:
        dataset, text = self.options["dataset"], answer_in(str(answer))
        if not is_in_grammar(dataset, text, truth):
            return 0.0
        if self.needs_sandbox:
            return await score_in_sandbox(text, truth, dataset, self.options["params"], self.deadline)
        return await super().__call__(text, truth, task)


def native(answer: str, entry: Mapping[str, Any], *, dataset: str, params: Mapping[str, Any]) -> float:
    """A task's own score, often graded: 1 for the right answer, less for one that is near or wordy."""
    scorer = _dataset(dataset, json.dumps(params))
    try:
        return float(scorer.score_answer(answer, dict(entry)))
    except (ValueError, TypeError, AttributeError, LookupError, ArithmeticError, RecursionError, MemoryError):
        # Some scorers (prime_factorization, boxnet, game_of_life) raise on text that they cannot read: a wrong answer.
        return 0.0


@cache
def _dataset(name: str, params: str) -> ProceduralDataset:
    return reasoning_gym.create_dataset(name, **json.loads(params))
