"""How a user's reward function is called: with or without the task, for one answer or for many."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from coterie import reward
from coterie.config.interfaces import interface_problem
from coterie.envs.base import attach_reward
from coterie.envs.rows import Rows
from coterie.errors import BadReward
from coterie.rewards import Grader, GraderFailed, GraderTimeout, batching, make_grader
from coterie.rewards.reward_function import RewardSignature, reward_signature
from coterie.types import Episode, Task, Weighted

TASK = Task("t1", "the prompt", "4", {"within": 2.0})
OWN = """
import os, time
from coterie import reward

def two(answer, truth): return float(answer == truth)
def three(answer, truth, task): return float(task.meta["within"]) if task.id == "t1" else 0.0
async def waits(answer, truth, task): return float(len(task.prompt))
def bonus(answer, truth, scale=3.0): return scale
def optional(answer, truth, task=None, *, scale: float = 1.0): return scale * len(task.prompt)

@reward(batched=True)
def pairs(answers, truths): return [float(len(answers))] * len(answers)

@reward(batched=True)
async def triples(answers, truths, tasks):
    assert len(answers) == len(truths) == len(tasks)
    return [float((a, truth) == (task.id, task.answer)) for a, truth, task in zip(answers, truths, tasks)]

@reward(batched=True)
def fragile(answers, truths):
    if "bad" in answers: raise ConnectionError("the server is down")
    while "hang" in answers: time.sleep(1)
    return [float("nan") if answer == "nan" else 1.0 for answer in answers]

@reward(batched=True)
def short(answers, truths): return [1.0]
@reward(batched=True)
def number(answers, truths): return 1.0
"""


@pytest.fixture
def own(tmp_path: Path) -> Path:
    path = tmp_path / "mine.py"
    path.write_text(OWN)
    return path


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Answers that are given at once meet in one batch: they are all there before the first wait is over."""
    monkeypatch.setattr(batching, "WAIT", 0.3)


def grade(own: Path, name: str, answer: Any = "4", task: Task | None = TASK, **options: Any) -> float:
    return asyncio.run(make_grader(f"{own}:{name}", options, 20.0)(answer, "4", task))


def grades(ask: Grader, answers: list[Any]) -> list[Any]:
    async def all_at_once() -> list[Any]:
        return await asyncio.gather(*(ask(answer, "4", TASK) for answer in answers), return_exceptions=True)

    return asyncio.run(all_at_once())


def test_a_function_gets_the_task_as_its_third_argument(own: Path) -> None:
    assert grade(own, "three") == 2.0
    assert grade(own, "waits") == len("the prompt")
    assert grade(own, "optional", scale=0.5) == len("the prompt") / 2


def test_a_function_of_two_arguments_is_called_as_ever(own: Path) -> None:
    unsendable = Task("t1", "?", "4", {"lock": lambda: None})  # which no process could be sent
    assert grade(own, "two", task=unsendable) == grade(own, "two", task=None) == 1.0
    assert grade(own, "bonus") == 3.0  # a third argument with a default is its own


def test_a_function_that_takes_the_task_is_not_called_without(own: Path) -> None:
    with pytest.raises(ValueError, match=r"mine.py:three takes the task: call the grader with \(answer, truth, task\)"):
        grade(own, "three", task=None)


@pytest.mark.usefixtures("patient")
def test_answers_that_are_ready_together_are_scored_in_one_call(own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batching, "MAX_BATCH", 8)
    ask = make_grader(f"{own}:pairs", {}, 20.0)
    assert grades(ask, ["a"]) == [1.0]  # from now on its reward_signature is known
    assert sorted(grades(ask, [str(n) for n in range(20)])) == [4.0] * 4 + [8.0] * 16  # eight at most
    assert grades(ask, ["a", "b"]) == [2.0, 2.0]  # in another event loop


def test_every_answer_of_a_batch_gets_its_own_reward(own: Path) -> None:
    tasks = [Task(f"t{n}", "?", str(n)) for n in range(6)]

    async def all_at_once() -> list[float]:
        ask = make_grader(f"{own}:triples", {}, 20.0)
        said = [task.id if n % 2 else "wrong" for n, task in enumerate(tasks)]
        return await asyncio.gather(*(ask(a, task.answer, task) for a, task in zip(said, tasks, strict=True)))

    assert asyncio.run(all_at_once()) == [0.0, 1.0] * 3


@pytest.mark.usefixtures("patient")
def test_an_answer_that_breaks_a_batched_reward_fails_alone(own: Path) -> None:
    ask = make_grader(f"{own}:fragile", {}, 20.0)
    assert grades(ask, ["a"]) == [1.0]
    first, bad, last = grades(ask, ["a", "bad", "b"])
    assert (first, last) == (1.0, 1.0)
    assert isinstance(bad, GraderFailed) and "the server is down" in str(bad)
    first, nan = grades(ask, ["a", "nan"])
    assert first == 1.0 and isinstance(nan, ValueError) and "a reward must be a finite number" in str(nan)


@pytest.mark.usefixtures("patient")
def test_an_answer_that_hangs_a_batched_reward_is_killed_alone(own: Path) -> None:
    ask = make_grader(f"{own}:fragile", {}, 1.0)
    assert grades(ask, ["a"]) == [1.0]
    first, hang, last = grades(ask, ["a", "hang", "b"])
    assert (first, last) == (1.0, 1.0) and isinstance(hang, GraderTimeout)


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize(("name", "what"), [("short", "1 rewards"), ("number", "1.0")])
def test_a_batched_reward_gives_a_list_of_as_many(own: Path, name: str, what: str) -> None:
    ask = make_grader(f"{own}:{name}", {}, 20.0)
    grades(ask, ["a"])
    for error in grades(ask, ["a", "b"]):
        assert isinstance(error, ValueError)
        assert f"gave {what} for 2 answers; it must give one per answer" in str(error)


NUMBERS = """
from fractions import Fraction
import numpy, torch
from coterie import reward

def tensor(answer, truth): return torch.tensor(0.5, requires_grad=True)
def single(answer, truth): return numpy.float32(0.5)
def half(answer, truth): return Fraction(1, 2)
def right(answer, truth): return numpy.bool_(True)
def array(answer, truth): return numpy.array([0.5])
def wide(answer, truth): return torch.ones(2, 2)
def generated(answer, truth): yield 0.5
def named(answer, truth): return {"score": 0.5}
def text(answer, truth): return "0.5"
def huge(answer, truth): return 1e300

@reward(batched=True)
def arrays(answers, truths): return numpy.full(len(answers), 0.5)
@reward(batched=True)
def tensors(answers, truths): return [torch.tensor(0.5) for _ in answers]
@reward(batched=True)
def generators(answers, truths): return (0.5 for _ in answers)
"""


@pytest.fixture
def numbers(tmp_path: Path) -> Path:
    path = tmp_path / "numbers.py"
    path.write_text(NUMBERS)
    return path


def test_a_number_of_torch_or_numpy_is_a_number(numbers: Path) -> None:
    names = ("tensor", "single", "half", "right", "arrays", "tensors")
    assert [grade(numbers, name) for name in names] == [0.5, 0.5, 0.5, 1.0, 0.5, 0.5]


def test_what_is_no_number_is_shown_as_it_was_returned(numbers: Path) -> None:
    shown = {
        "array": "[0.5]",
        "wide": "tensor([[",
        "generated": "<generator object generated",
        "text": "'0.5'",
        "huge": "1e+300",
    }
    for name, start in (shown | {"named": "{'score': 0.5}"}).items():
        with pytest.raises(BadReward, match=rf"(?s)gave {re.escape(start)}.*; a reward must be a finite number"):
            grade(numbers, name)
    with pytest.raises(BadReward, match=r"gave <generator object .* for 1 answers; it must give one per answer"):
        grade(numbers, "generators")


def test_parts_of_a_sum_are_given_the_task_too(own: Path) -> None:
    parts = tuple(Weighted(f"{own}:{name}", {}, None, 0.5) for name in ("two", "three", "triples"))
    ask = make_grader("compose", {"parts": parts}, 20.0)
    assert grades(ask, ["4", "5"]) == [1.5, 1.0]


def test_an_environment_gives_its_task_to_the_reward_also_where_a_workflow_asks(own: Path, tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text('{"question": "the prompt", "answer": "4", "within": 0.25, "id": "t1"}\n')
    env = attach_reward(Rows(tmp_path / "rows.jsonl"), f"{own}:waits", {}, 20.0)
    episode = Episode("e", env.tasks("train")[0], 0, answer="?")
    asyncio.run(env.score(episode))
    assert episode.reward == len("the prompt")


def _answer(answer: Any) -> float:
    return 0.0


def _four(answer: Any, truth: Any, task: Any, more: Any) -> float:
    return 0.0


def _three(answer: Any, truth: Any, row: Any, *, option: int = 0) -> float:
    return 0.0


def _spread(*arguments: Any) -> float:
    return 0.0


def test_a_signature_says_how_a_function_is_called() -> None:
    assert reward_signature(_three) == RewardSignature(takes_task=True, batched=False)
    assert (
        reward_signature(_spread)
        == reward_signature(lambda answer, truth, scale=1: 0.0)
        == RewardSignature(False, False)
    )
    assert reward_signature(reward(batched=True)(lambda answers, truths: [])) == RewardSignature(False, batched=True)


@pytest.mark.parametrize(
    ("function", "wrong"),
    [
        (_answer, "_answer cannot be called with (answer, truth): too many positional arguments"),
        (_four, "_four cannot be called with (answer, truth, task): missing a required argument: 'more'"),
        (_three, None),
        (_spread, None),
    ],
)
def test_a_config_refuses_a_function_that_takes_anything_else(function: Callable[..., Any], wrong: str | None) -> None:
    assert interface_problem("reward", function, function) == wrong


def test_the_decorator_checks_where_the_function_is_written() -> None:
    with pytest.raises(TypeError, match=r"must take \(answers, truths\), and options after a `\*`"):
        reward(batched=True)(lambda answers: [])
    with pytest.raises(TypeError, match=r"must take \(answer, truth, task\), and options after"):
        reward(_four)
