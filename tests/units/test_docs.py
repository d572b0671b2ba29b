"""The examples of the pages run as they stand."""

from __future__ import annotations

import asyncio
import importlib.util
import re
from pathlib import Path
from typing import Any

import pytest

from coterie.envs.base import graded
from coterie.rewards.load import load
from coterie.types import Env, Episode, Task, Turn, Workflow
from tests.episodes import credited
from tests.scripted import Scripted

DOCS = Path(__file__).parents[2] / "docs"


def example(page: str, name: str, folder: Path) -> Any:
    """What a page's Python block defines, saved as a user would save it."""
    (code,) = re.findall(r"^```python\n(.*?)^```", (DOCS / page).read_text(), re.DOTALL | re.MULTILINE)
    file = folder / f"{name.lower()}.py"
    file.write_text(code)
    return load(f"{file}:{name}")


@pytest.mark.parametrize("page", ["adding-a-workflow.md", "adding-an-environment.md", "adding-an-algorithm.md"])
def test_a_page_is_short(page: str) -> None:
    assert len((DOCS / page).read_text().splitlines()) <= 60


def test_the_workflow_of_the_page_plays(tmp_path: Path) -> None:
    env = example("adding-an-environment.md", "Guessing", tmp_path)(size=1)
    relay = example("adding-a-workflow.md", "Relay", tmp_path)()
    assert isinstance(relay, Workflow)
    team = Scripted({"writer": ["40", "42"], "strict": ["too low"], "kind": ["x" * 300]})
    assert asyncio.run(relay.run(env.tasks("train")[0], team, None)) == "42"
    assert team.writer.heard[1][: len(team.writer.heard[0])] == team.writer.heard[0]
    assert "too low" in team.writer.heard[1][-1]["content"]


def test_the_environment_of_the_page_is_played_and_scored(tmp_path: Path) -> None:
    env = example("adding-an-environment.md", "Guessing", tmp_path)(size=3)
    assert isinstance(env, Env)
    task = graded(env, "native", {}, 1.0).tasks("test")[0]
    world = env.open(task)
    low, high = 1, 100
    while not world.done:
        guess = (low + high) // 2
        world.act(str(guess))
        low, high = (guess + 1, high) if world.observe() == "Higher." else (low, guess - 1)
    episode = Episode("e", task, 0, answer=guess)
    asyncio.run(env.score(episode))
    assert episode.reward == 1.0
    assert world.guesses <= 7


def test_the_algorithm_of_the_page_compares_each_turn_with_the_others(tmp_path: Path) -> None:
    rloo = example("adding-an-algorithm.md", "Rloo", tmp_path)()
    task = Task("t", "?", "!")
    episodes = [Episode(f"t/{i}", task, i, [a_turn()], reward=reward) for i, reward in enumerate([1.0, 0.0, 0.0])]
    alone = Episode("u/0", Task("u", "?", "!"), 0, [a_turn()], reward=1.0)
    credited(rloo, [*episodes, alone])
    advantages = [episode.turns[0].advantages.tolist() for episode in (*episodes, alone)]
    assert advantages == [[1.0] * 2, [-0.5] * 2, [-0.5] * 2, [0.0] * 2]


def a_turn() -> Turn:
    return Turn("solver", "small", 0, 0, (1, 2), (3, 4), (-0.1, -0.2), 1.0, "hi", "end")


def test_the_page_of_algorithms_says_what_the_algorithms_say() -> None:
    written = (DOCS / "algorithms.md").read_text()
    spec = importlib.util.spec_from_file_location("make_algorithms", DOCS / "make_algorithms.py")
    assert spec is not None and spec.loader is not None
    maker = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(maker)
    assert written == maker.page(), "run: python docs/make_algorithms.py"
