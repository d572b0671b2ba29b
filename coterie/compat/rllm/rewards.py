"""Reward functions in rLLM's form: `(row, answer)` → a number, or an object with `reward` and `is_correct`.

Imports little, because grading processes load it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from coterie.rewards.grader import make_grader
from coterie.rewards.reward_function import load
from coterie.types import Task, is_correct

SECONDS = 30.0  # for one answer
RewardFunction = Callable[[Mapping[str, Any], Any], Any]  # (row, answer) → a number or a RewardOutput


@dataclass(frozen=True)
class RewardOutput:
    """What a reward function of rLLM returns."""

    reward: float
    is_correct: bool = False
    metadata: Mapping[str, Any] = field(default_factory=dict)


def row_function(
    answer: Any,
    truth: Any,
    task: Task,
    *,
    function: str,  # path/to/file.py:name of a function (row, answer)
) -> float:
    """The reward of a function that takes the task's row and the answer, as in rLLM.

    The row has the task's own fields, `question`, and the reference answer as `answer` and `ground_truth`.
    """
    result = load(function)(row_of(task, truth), answer)
    return float(getattr(result, "reward", result))


def row_of(task: Task, truth: Any) -> dict[str, Any]:
    """A task as the row that rLLM's functions read; a row's own fields stay as they are."""
    return {"question": task.prompt, "answer": task.answer, "ground_truth": truth, **task.meta}


def math_reward_fn(task_info: Mapping[str, Any], action: Any) -> RewardOutput:
    """1 if the boxed answer equals `ground_truth`: the reward `math`."""
    return _graded("math", action, _truth(task_info))


def search_reward_fn(task_info: Mapping[str, Any], action: Any) -> RewardOutput:
    """Token F1 with `ground_truth`: the reward `qa`."""
    return _graded("qa", action, _truth(task_info))


def code_reward_fn(task_info: Mapping[str, Any], action: Any) -> RewardOutput:
    """The fraction of the tests (`tests` or `ground_truth`) that the program passes: the reward `code`."""
    return _graded("code", action, task_info["tests"] if task_info.get("tests") is not None else _truth(task_info))


# Passed to a built-in workflow, these become the built-in rewards, which grade concurrently.
BUILTIN_REWARDS: dict[Callable[..., Any], str] = {
    math_reward_fn: "math",
    search_reward_fn: "qa",
    code_reward_fn: "code",
}


def _truth(row: Mapping[str, Any]) -> Any:
    for name in ("ground_truth", "answer"):
        if row.get(name) is not None:
            return row[name]
    raise ValueError(f"task_info has neither ground_truth nor answer; it has {', '.join(row)}")


def _graded(name: str, answer: Any, truth: Any) -> RewardOutput:
    """The reward of a built-in grader, which runs in a process that can be killed.

    In a thread: the caller may run in an event loop, which cannot wait for another.
    """
    grade = make_grader(name, {}, SECONDS)
    with ThreadPoolExecutor(1) as thread:
        reward = thread.submit(lambda: asyncio.run(grade(answer, truth))).result()
    return RewardOutput(reward, is_correct(reward))
