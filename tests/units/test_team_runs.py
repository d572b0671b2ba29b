"""Every workflow trains: two steps with a tiny model, in the environment it is made for. A browser shows the run."""

from __future__ import annotations

import json
import runpy
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from coterie.check.probes import broken_answer_probes, reference_probes
from coterie.config import load
from coterie.config.registry import BUILTIN, find
from tests.browser import Reader, reading
from tests.runs import started, trained
from tests.teams import parts, written

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def model(model_folder: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model with room for the long prompts of teams."""
    folder = tmp_path_factory.mktemp("long") / "model"
    shutil.copytree(model_folder("llama"), folder)
    for name, key in (("config.json", "max_position_embeddings"), ("tokenizer_config.json", "model_max_length")):
        told = json.loads((folder / name).read_text())
        (folder / name).write_text(json.dumps(told | {key: 8192}))
    return folder


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return written(tmp_path)


@pytest.fixture(scope="module")
def reader() -> Iterator[Reader | None]:
    with reading() as opened:
        yield opened


@pytest.mark.parametrize("name", [name for name in BUILTIN["workflow"] if name != "graph"])
def test_a_workflow_takes_two_steps_and_can_be_read(name: str, data: Path, model: Path, reader: Reader | None) -> None:
    chosen = parts(name, data)
    run = trained(config(name, chosen, model), data / "run")
    lines = (run.folder / "metrics.jsonl").read_text().splitlines()
    steps = [json.loads(line) for line in lines]
    assert run.step == 2 and [step["failed"] for step in steps[:2]] == [0, 0]
    assert f"tokens/{next(iter(run.config.roles))}" in steps[0]
    if reader is not None:
        assert reader.read(run.folder) == []


def config(name: str, chosen: dict[str, Any], model: Path) -> dict[str, Any]:
    options = {
        k: Path(v) if k in ("corpus", "profile_path") else v for k, v in chosen["workflow"].items() if k != "name"
    }
    return chosen | {
        "steps": 2,
        "tasks_per_step": 1,
        "episodes_per_task": 2,
        "policies": {"all": {"model": str(model), "lr": 1e-2, "lora": {"rank": 2}}},
        "roles": dict.fromkeys(find("workflow", name)(**options).roles, "all"),
        "algorithm": {"name": "grpo", "gamma_turn": 0},
        "sampling": {"max_tokens": 5},
        "eval": {"tasks": 1},
        "rollout": {"max_failed": 0.0},
        "device": "cpu",
    }


@pytest.mark.parametrize("name", [name for name in BUILTIN["workflow"] if name not in ("graph", "multi_turn")])
def test_the_reference_answer_reaches_the_grader_through_every_workflow_and_broken_ones_earn_less(
    name: str, data: Path, model: Path
) -> None:
    run = started(config(name, parts(name, data), model), data / "run")
    golds = reference_probes(run, run.tasks.tasks)
    assert [gold.episode.reward for gold in golds] == [1.0], golds[0].episode.answer
    probes = broken_answer_probes(run, run.tasks.tasks, golds)
    assert [probe.episode.error for probe in probes] == [None, None]
    assert [probe.episode.reward for probe in probes] == [0.0, 0.0]


@pytest.mark.parametrize("team", ["deepcoder", "swe", "math_tool", "search", "deepresearch"])
def test_an_example_runs_from_any_folder(
    team: str, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = load(ROOT / "recipes" / f"{team}.yaml")
    models = [f"policies.{policy}.model={model}" for policy in recipe.policies]
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    monkeypatch.setattr(sys, "argv", [team, *models, "device=cpu", "rollout.max_failed=0.0"])
    runpy.run_path(str(ROOT / "examples" / f"{team}.py"), run_name="__main__")
    assert len((tmp_path / "runs" / team / "metrics.jsonl").read_text().splitlines()) == 3
