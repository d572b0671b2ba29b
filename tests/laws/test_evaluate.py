"""Laws of measuring a team."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from coterie.engines.native.engine import NativeEngine
from coterie.evaluate import evaluate, pass_at
from coterie.models.base import Base
from coterie.rollout import Collector, Seat
from coterie.types import Episode, Sampling, Task, Team


@pytest.mark.parametrize("n", range(1, 7))
def test_pass_at_k_is_the_share_of_choices_of_k_with_a_right_one(n: int) -> None:
    for right in range(n + 1):
        answers = [True] * right + [False] * (n - right)
        for k in range(1, n + 1):
            choices = list(combinations(answers, k))
            assert pass_at(n, right, k) == pytest.approx(sum(map(any, choices)) / len(choices))


class Marked:
    """An environment whose task says which repeats are right, and which fail."""

    def open(self, task: Task) -> None:
        return None

    async def score(self, episode: Episode) -> None:
        mark = episode.task.answer[episode.repeat]
        episode.reward = 1.0 if mark == "x" else float(mark)
        if mark == "x":
            raise ValueError("fails after it gave a reward")


@dataclass(frozen=True)
class Brief:
    roles: tuple[str, ...] = ("solver",)

    async def run(self, task: Task, team: Team, world: Any) -> str:
        return (await team.solver.say(task.prompt)).text


def test_a_failed_episode_counts_as_wrong(model_folder: Callable[[str], Path]) -> None:
    base = Base(model_folder("llama"))
    env: Any = Marked()
    collector = Collector(Brief(), env, NativeEngine(base, {"policy": None}), {"policy": base.chat}, 8, 60, 60)
    marks = ["1100", "0000", "xx01", "1111"]
    tasks = [Task(f"task {i}", "Go.", mark) for i, mark in enumerate(marks)]
    report = evaluate(collector, tasks, 4, {"solver": Seat("policy", Sampling(max_tokens=3))}, seed=0)
    assert len(report.episodes) == 16
    assert report.metrics["pass@1"] == pytest.approx((2 + 0 + 1 + 4) / 16)
    assert report.metrics["pass@4"] == pytest.approx(3 / 4)
    assert report.metrics["reward"] == pytest.approx(7 / 16)
    assert report.metrics["failed/ValueError"] == 2
    assert report.metrics["tokens"] == pytest.approx(sum(len(e.turns[0].response_ids) for e in report.episodes) / 16)
