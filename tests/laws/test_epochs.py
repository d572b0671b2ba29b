"""Laws of `epochs` and of runs without evaluation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from coterie.cli.commands import resume
from coterie.config import ConfigError, dump, load
from coterie.config.conflicts import check_conflicts
from coterie.episode_rows import read_episodes
from tests.runs import naming_config, trained, written

Folder = Callable[[str], Path]


def rows_config(model: Path, folder: Path, **changes: Any) -> dict[str, Any]:
    """The naming team on three rows of a file."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "rows.jsonl").write_text("".join(f'{{"question": "{n}", "answer": "e"}}\n' for n in range(3)))
    env = {"name": "rows", "train": str(folder / "rows.jsonl")}
    tree = naming_config(model, env=env, reward="exact", eval={"tasks": 0}, sampling={"max_tokens": 2})
    tree["episodes_per_task"] = 2
    del tree["steps"]
    return tree | changes


def tasks_by_step(folder: Path) -> list[list[str]]:
    """The tasks of each step, in order."""
    files = sorted((folder / "episodes").glob("*.jsonl.gz"))
    return [list(dict.fromkeys(episode.task.id for episode in read_episodes(file))) for file in files]


def test_an_epoch_is_a_pass_over_the_rows_and_can_be_continued(model_folder: Folder, tmp_path: Path) -> None:
    tree = rows_config(model_folder("llama"), tmp_path / "data", epochs=2, tasks_per_step=3)
    whole = trained(tree, tmp_path / "whole")
    assert whole.config.steps == whole.step == 2
    seen = tasks_by_step(tmp_path / "whole")
    assert Counter(task for step in seen for task in step) == dict.fromkeys(set(seen[0]), 2)
    trained(tree | {"epochs": 1}, tmp_path / "parts")
    assert "epochs: 1" in (tmp_path / "parts" / "config.yaml").read_text()
    resume(tmp_path / "parts", ["epochs=2"], examples=0)
    assert tasks_by_step(tmp_path / "parts") == seen


def test_a_last_step_that_is_not_full_is_filled_up(model_folder: Folder, tmp_path: Path) -> None:
    run = trained(rows_config(model_folder("llama"), tmp_path / "data", epochs=1, tasks_per_step=2), tmp_path / "run")
    first, second = tasks_by_step(tmp_path / "run")
    assert (
        run.step == 2
        and len(first) == len(second) == 2
        and set(first) | set(second) == {f"rows/{n}" for n in (1, 2, 3)}
    )


def test_without_held_out_tasks_there_is_no_evaluation_and_it_is_told_once(
    model_folder: Folder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = trained(rows_config(model_folder("llama"), tmp_path / "data", steps=1, tasks_per_step=1), tmp_path / "run")
    assert run.held_out == [] and "eval/reward" not in (tmp_path / "run" / "metrics.jsonl").read_text()
    assert capsys.readouterr().err.count("there is no evaluation") == 1


@pytest.mark.parametrize(
    ("text", "changes", "steps", "epochs"),
    [
        ("steps: 7", [], 7, None),
        ("epochs: 3", [], 100, 3),
        ("steps: 7", ["epochs=3"], 100, 3),  # the command line replaces the file
        ("epochs: 3", ["steps=7"], 7, None),
    ],
)
def test_a_run_has_steps_or_epochs(
    text: str, changes: list[str], steps: int, epochs: int | None, tmp_path: Path
) -> None:
    tree = naming_config(tmp_path)
    del tree["steps"]
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(tree) + text)
    config = load(tmp_path / "recipe.yaml", changes)
    assert (config.steps, config.epochs) == (steps, epochs)
    (tmp_path / "again.yaml").write_text(dump(config))
    assert load(tmp_path / "again.yaml") == config


def test_both_are_one_too_many(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"epochs: a run has either epochs or steps, and steps is 4; .*line \d+"):
        written(naming_config(tmp_path, epochs=2), tmp_path)


@pytest.mark.parametrize("change", ["eval.every=2", "eval.before_training=true"])
def test_keys_of_an_evaluation_that_there_is_not_are_told(change: str, tmp_path: Path) -> None:
    config = written(naming_config(tmp_path, eval={"tasks": 0}), tmp_path)
    with pytest.raises(ConfigError, match=r"eval\.\w+: has no effect while eval.tasks is 0"):
        check_conflicts(load(str(config.sources.file), [change]))
