"""Procedurally generated tasks from reasoning-gym."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from functools import lru_cache
from typing import Any

import reasoning_gym
from reasoning_gym.factory import DATASETS

from coterie.envs.base import TaskEnv
from coterie.errors import did_you_mean
from coterie.limits import Count
from coterie.prompts import check, fill
from coterie.rewards import Grader
from coterie.rewards.reasoning_gym import SCORER, NativeGrader
from coterie.types import Split, Task

Entry = dict[str, Any]  # question, answer, metadata
OWN_OPTIONS = ("seed", "size")  # dataset parameters that the environment sets from its own options
COMPOSITE = "composite"  # takes Python objects, which a config cannot express
DRAWS = 20  # entries drawn per test task, at most; then there are fewer test tasks


@dataclass(frozen=True)
class ReasoningGym(TaskEnv):
    """Any reasoning-gym dataset by name and parameters. Test tasks do not occur in training.

    `reward: native` uses the dataset's own scorer, which often gives partial credit.
    """

    dataset: str  # the name of a reasoning-gym dataset
    params: dict[str, Any] = field(default_factory=dict)  # parameters of the dataset
    size: Count = 1000  # training tasks
    test_size: Count = 200  # held-out tasks
    seed: int = 0  # seed of the tasks
    prompt: str = "{question}"  # may use {question} and metadata fields, such as {expression}

    def __post_init__(self) -> None:
        _check_name("dataset", self.dataset, [name for name in DATASETS if name != COMPOSITE])
        names = [f.name for f in fields(DATASETS[self.dataset][1]) if f.name not in OWN_OPTIONS]
        for name in self.params:
            _check_name("params", name, names)
        try:
            entry = next(self._entries("train", 1))
        except (AssertionError, TypeError) as error:  # how reasoning-gym rejects a value
            raise ValueError(f"params: {self.dataset} rejects them: {error}") from None
        check(self.prompt, ["question", *entry["metadata"]], "prompt")

    def tasks(self, split: Split) -> list[Task]:
        drawn = _training(self.dataset, json.dumps(self.params), self.seed, self.size)
        train = [self._task("train", number, entry) for number, entry in enumerate(drawn)]
        return train if split == "train" else self._held_out({task.prompt for task in train})

    def reference(self, task: Task) -> Any:
        if self.grade.name != SCORER:
            return task.answer
        return {"question": task.prompt, "answer": task.answer, "metadata": dict(task.meta)}

    def native(self, deadline: float) -> Grader:
        options = {"dataset": self.dataset, "params": self.params}
        return NativeGrader(SCORER, options, deadline)

    def _held_out(self, seen: set[str]) -> list[Task]:
        """Draw tasks that are not in `seen`; fewer than `test_size` if the dataset has too few distinct tasks."""
        found: dict[str, Task] = {}
        for number, entry in enumerate(self._entries("test", self.test_size * DRAWS)):
            task = self._task("test", number, entry)
            if task.prompt not in seen:
                found.setdefault(task.prompt, task)
            if len(found) == self.test_size:
                break
        if not found:
            raise ValueError(f"size: {self.size} training tasks leave {self.dataset} no other for the test; lower it")
        return list(found.values())

    def _entries(self, split: Split, count: int) -> Iterator[Entry]:
        return _entries(self.dataset, self.params, f"{self.seed}/{split}", count)

    def _task(self, split: Split, number: int, entry: Entry) -> Task:
        metadata = entry["metadata"]
        values = {name: str(value) for name, value in metadata.items()} | {"question": entry["question"]}
        return Task(f"{self.dataset}/{split}/{number}", fill(self.prompt, values), entry["answer"], metadata)


def _entries(name: str, params: Mapping[str, Any], seed: str, count: int) -> Iterator[Entry]:
    # Entry i is drawn with seed + i, so neighbouring seeds would share almost all tasks; hash the seed.
    dataset = reasoning_gym.create_dataset(name, seed=random.Random(seed).getrandbits(31), size=count, **params)
    return (dataset[index] for index in range(count))


@lru_cache(maxsize=4)
def _training(name: str, params: str, seed: int, count: int) -> tuple[Entry, ...]:
    """Cached, because both splits need it: a thousand countdown tasks take half a minute."""
    return tuple(_entries(name, json.loads(params), f"{seed}/train", count))


def _check_name(option: str, name: str, names: list[str]) -> None:
    if name in names:
        return
    hint = did_you_mean(name, names) or f"; there are {', '.join(sorted(names))}"
    raise ValueError(f"{option}.{name}: unknown{hint}" if option == "params" else f"{option}: unknown {name}{hint}")
