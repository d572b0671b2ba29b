"""The task of between.yaml: say a number between two others."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

from coterie import Task
from coterie.envs.base import TaskEnv
from coterie.rewards import Grader
from coterie.rewards.answer_extraction import last_number
from coterie.types import Split


@dataclass(frozen=True)
class Inside(Grader):
    """1 if the last number of an answer lies strictly between the two numbers of its question, else 0."""

    async def __call__(self, answer: Any, truth: Any, task: Task | None = None) -> float:
        number, (low, high) = last_number(str(answer)), truth
        return float(number is not None and low < number < high)


@dataclass(frozen=True)
class Between(TaskEnv):
    """Questions with many right answers, of which no constant suits many. Test questions do not occur in training."""

    size: int = 1000  # training questions
    test_size: int = 200
    narrowest: int = 10  # the smallest difference of the two numbers
    widest: int = 35
    seed: int = 0  # of the questions

    def tasks(self, split: Split) -> list[Task]:
        pairs = [
            (low, low + width) for width in range(self.narrowest, self.widest + 1) for low in range(10, 100 - width)
        ]
        random.Random(self.seed).shuffle(pairs)
        chosen = pairs[: self.test_size] if split == "test" else pairs[self.test_size : self.test_size + self.size]
        return [Task(f"{a}-{b}", f"Say a number between {a} and {b}.", [a, b]) for a, b in chosen]

    def native(self, deadline: float) -> Grader:
        return Inside("inside", {}, deadline)
