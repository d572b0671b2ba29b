"""A team that only plays gives the answers of the run that trained it."""

from __future__ import annotations

import asyncio
import re
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from coterie.api import Trained
from coterie.errors import UserError
from coterie.rollout.playable import answer_text
from coterie.training.build import for_inference
from coterie.types import Task, Team
from tests.runs import naming_config, trained

DOCS = Path(__file__).parents[2] / "docs" / "runs.md"


@pytest.mark.parametrize("lora", [{"rank": 4}, None])
def test_it_answers_as_the_run_does_without_its_state(
    lora: dict[str, int] | None, model_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    tree = naming_config(model_folder("llama"), steps=2)
    tree["policies"] = {name: policy | {"lora": lora} for name, policy in tree["policies"].items()}
    run = trained(tree, tmp_path / "run")
    expected = run.collector.collect(run.held_out, 1, run.players(evaluating=True), seed=3)
    moved = Path(shutil.copytree(tmp_path / "run", tmp_path / "moved"))
    team = for_inference(moved)
    for episode in expected:
        played = asyncio.run(team.play(Task(episode.task.id, episode.task.prompt, None), seed=episode.seed))
        assert [turn.response_ids for turn in played.turns] == [turn.response_ids for turn in episode.turns]
        assert played.answer == episode.answer
    assert team.step == 2 and any(turn.version for episode in expected for turn in episode.turns)


@dataclass(frozen=True)
class AsksTheWorld:
    """Answers with what its world says."""

    roles: Sequence[str] = ("left", "right")

    async def run(self, task: Task, team: Team, world: Any) -> str:
        return world.observe() + (await team.left.say(task.prompt, max_tokens=1)).text


class Wall:
    def observe(self) -> str:
        return "a wall "


def test_a_run_is_read_back_from_python(
    model_folder: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "runs" / "demo"
    trained(naming_config(model_folder("llama"), steps=2), folder)
    monkeypatch.chdir(tmp_path)
    (code,) = re.findall(r"^```python\n(.*?)^```", DOCS.read_text(), re.DOTALL | re.MULTILINE)
    exec(code, {})  # what the page of runs shows
    read = Trained(folder)
    assert [row["step"] for row in read.history() if "reward" in row] == [1, 2]
    assert read.metrics["reward"] == [row["eval/reward"] for row in read.history() if "eval/reward" in row][-1]
    (first, *_) = read.episodes(1)[0].turns
    assert len(first.response_ids) == len(first.logprobs) == len(first.advantages) and first.prompt_ids
    with pytest.raises(UserError, match="has no episodes of step 3; it has those of 1, 2"):
        read.episodes(3)
    with pytest.raises(UserError, match="runs/none: there is no such run"):
        Trained("runs/none")
    team = replace(read.team(), workflow=AsksTheWorld())
    assert asyncio.run(team.play(Task("one", "?", None), world=Wall())).answer.startswith("a wall ")


def test_each_roles_text_is_given_out_while_it_is_sampled(model_folder: Callable[[str], Path], tmp_path: Path) -> None:
    run = trained(naming_config(model_folder("llama"), steps=1), tmp_path)
    parts: list[tuple[str, str | None]] = []
    task = Task("one", "Say your letter.", None)
    episode = asyncio.run(for_inference(tmp_path).play(task, on_text=lambda *part: parts.append(part)))
    for turn in episode.turns:
        assert "".join(text or "" for role, text in parts if role == turn.role) == turn.text
    assert len(parts) > len(episode.turns) and run.step == 1


def test_an_answer_is_text() -> None:
    assert answer_text({"a": ["1", "2"], "b": "3"}) == "a: 2\n\nb: 3"
    assert (answer_text(None), answer_text(4), answer_text("x")) == ("", "4", "x")
