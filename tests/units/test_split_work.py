"""Laws of the smallest task that has to be divided, and of the recipes around it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from coterie.analysis.comparison import load as load_comparison
from coterie.config import load
from coterie.types import Episode, Task
from tests.scripted import Scripted

RESULTS = Path(__file__).parents[2] / "recipes" / "results"
TEAM = load(RESULTS / "split_work" / "team.yaml")
ENV, AT_ONCE = TEAM.env.instance, TEAM.workflow.instance


def reward(*replies: str) -> float:
    episode = Episode("e", Task("t", "", ("apple", "river")), 0, answer=list(replies))
    asyncio.run(ENV.score(episode))
    return episode.reward


@pytest.mark.parametrize(
    ("replies", "earned"),
    [
        (["apple", "river"], 1.0),
        (["River.", " APPLE!"], 1.0),
        (["apple", "apple"], 0.5),
        (["apple river", "I"], 0.5),  # a reply does one job
        (["apples", ""], 0.0),
        (["river"], 0.5),
    ],
)
def test_a_job_counts_once_and_a_reply_does_one(replies: list[str], earned: float) -> None:
    assert reward(*replies) == earned


def test_held_out_pairs_occur_in_training_in_neither_order() -> None:
    train, test = ({frozenset(task.answer) for task in ENV.tasks(split)} for split in ("train", "test"))
    assert not train & test and len(ENV.tasks("test")) == 100


def test_both_workers_read_the_same_words_and_neither_the_other() -> None:
    team, task = Scripted({"left": ["apple"], "right": ["river"]}), ENV.tasks("test")[0]
    assert asyncio.run(AT_ONCE.run(task, team, None)) == ["apple", "river"]
    assert team.left.prompts == team.right.prompts == [[{"role": "user", "content": task.prompt}]]


def test_workers_may_be_named() -> None:
    workflow: Any = load(RESULTS / "split_work" / "team.yaml", ["workflow.named=true"]).workflow.instance
    team, task = Scripted({"left": ["apple"], "right": ["river"]}), ENV.tasks("test")[0]
    asyncio.run(workflow.run(task, team, None))
    assert team.left.prompts[0][0]["content"] == f"You are the left worker. {task.prompt}"
    assert team.right.prompts[0][0]["content"] == f"You are the right worker. {task.prompt}"


def test_one_worker_with_two_calls_goes_on_in_its_conversation() -> None:
    workflow: Any = load(RESULTS / "split_work" / "single.yaml", ["workflow.calls=2"]).workflow.instance
    team, task = Scripted({"worker": ["apple", "river"]}), ENV.tasks("test")[0]
    assert asyncio.run(workflow.run(task, team, None)) == ["apple", "river"]
    assert [message["role"] for message in team.worker.prompts[1]] == ["user", "assistant", "user"]


@pytest.mark.parametrize("file", sorted(RESULTS.glob("*/compare.yaml")), ids=lambda file: file.parent.name)
def test_every_arm_of_a_result_loads_with_its_changes(file: Path) -> None:
    load_comparison(file).check_configs(())
