"""Laws of tasks that reasoning-gym makes up."""

from __future__ import annotations

import pytest
from reasoning_gym.factory import DATASETS

from coterie.envs.reasoning_gym import ReasoningGym
from coterie.types import Env, Task


def tasks(name: str) -> list[Task]:
    env: Env = ReasoningGym(name, size=2, test_size=1)
    return [*env.tasks("train"), *env.tasks("test")]


@pytest.mark.parametrize("name", ["kakurasu", "survo", "chain_sum"])
def test_tasks_are_numbered_whether_or_not_a_dataset_does(name: str) -> None:
    assert [task.id for task in tasks(name)] == [f"{name}/train/0", f"{name}/train/1", f"{name}/test/0"]


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(set(DATASETS) - {"composite"}))
def test_every_dataset_has_tasks(name: str) -> None:
    found = tasks(name)
    assert len({task.id for task in found}) == 3
    assert all(task.prompt for task in found)
