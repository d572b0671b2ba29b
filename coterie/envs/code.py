"""Programs to write, with tests: MBPP, HumanEval, DeepCoder."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from coterie.data.deepcoder import DEEPCODER
from coterie.data.humaneval import HUMANEVAL
from coterie.data.mbpp import MBPP
from coterie.envs.dataset_env import Known
from coterie.envs.test_bench import Bench
from coterie.types import Task


@dataclass(frozen=True)
class Mbpp(Known):
    """Short functions; `reward: code` runs the tests. `task.answer` is a program that passes them."""

    training = testing = MBPP

    prompt: str = "{question}\n\nGive the code in one ```python block."

    @classmethod
    def fitting(cls) -> list[str]:
        """All have tests that `reward: code` reads."""
        return [source.name for source in (MBPP, HUMANEVAL, DEEPCODER)]

    def open(self, task: Task) -> Bench:
        """A workflow may try programs before it answers, and see half of the tests."""
        return Bench(task.meta["tests"])

    def reference(self, task: Task) -> Any:
        """The tests, as their source writes them."""
        return task.meta["tests"]


@dataclass(frozen=True)
class HumanEval(Mbpp):
    """Functions to complete from their docstrings, to measure with; MBPP to train on."""

    training = MBPP
    testing = HUMANEVAL


@dataclass(frozen=True)
class DeepCoder(Mbpp):
    """Problems of programming contests."""

    training = testing = DEEPCODER
