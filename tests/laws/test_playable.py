"""A team that only plays gives the answers of the run that trained it."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from coterie.rollout.playable import answer_text
from coterie.training.build import for_inference
from coterie.types import Task
from tests.runs import naming_config, trained


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
