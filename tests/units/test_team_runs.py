"""Every workflow trains: two steps with a tiny model, in the environment it is made for."""

from __future__ import annotations

import json
import runpy
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from coterie.check.probes import broken, golden
from coterie.config import load
from coterie.config.registry import BUILTIN, find
from tests.runs import started, trained

ROOT = Path(__file__).parents[2]
CORPUS = [{"title": "Lima", "text": "Lima is the capital of Peru."}, {"title": "Quito", "text": "Quito is in Ecuador."}]
QA = {"question": "Capital of Peru?", "answer": "Lima", "supporting_facts": [["Lima", 0]], "context": []}
FIX = "--- a/calc.py\n+++ b/calc.py\n@@ -1,2 +1,2 @@\n def add(a, b):\n-    return a - b\n+    return a + b\n"
CODE = {"text": "Add.", "code": "def add(a, b): return a + b", "test_list": ["assert add(1, 2) == 3"]}
ISSUE = {"issue": "add subtracts", "repository": "calc", "tests": "python -m unittest test_calc", "patch": FIX}
FILES = {
    "calc.py": "def add(a, b):\n    return a - b\n",
    "test_calc.py": "import unittest, calc\nclass T(unittest.TestCase):\n    def test(self):\n        "
    "self.assertEqual(calc.add(1, 2), 3)\n",
}
SUM = {"question": "1 + 1?", "answer": "2"}


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
    for name, row in (("qa", QA), ("code", CODE), ("issues", ISSUE), ("sums", SUM)):
        (tmp_path / f"{name}.jsonl").write_text(json.dumps(row) + "\n")
    (tmp_path / "corpus.jsonl").write_text("".join(json.dumps(each) + "\n" for each in CORPUS))
    (tmp_path / "calc").mkdir()
    for name, text in FILES.items():
        (tmp_path / "calc" / name).write_text(text)
    return tmp_path


def split(folder: Path, file: str) -> dict[str, str]:
    return {"train": str(folder / file), "test": str(folder / file)}


def parts(name: str, data: Path) -> dict[str, Any]:
    """Workflow, environment, reward and credit that go together."""
    sums = {"env": {"name": "rows", **split(data, "sums.jsonl")}, "reward": "number", "credit": "team"}
    code = {"env": {"name": "mbpp", **split(data, "code.jsonl")}, "reward": "code", "credit": "own"}
    qa = {"env": {"name": "hotpotqa", **split(data, "qa.jsonl")}, "reward": "qa", "credit": "own"}
    library = {"corpus": str(data / "corpus.jsonl")}
    known: dict[str, dict[str, Any]] = {
        "deepcoder": code | {"workflow": {"name": name, "max_refinement_iterations": 1}},
        "swe": {"env": {"name": "swe", **split(data, "issues.jsonl")}, "reward": "native", "credit": "own"},
        "math_tool": sums | {"credit": "own"},
        "search": qa | {"workflow": {"name": name, **library}},
        "deep_research": qa | {"workflow": {"name": name, **library}},
        "multi_turn": {
            "env": "hunt",
            "reward": "native",
            "workflow": {"name": name, "roles": ["guide", "walker"], "max_steps": 2},
        },
    }
    return {"workflow": {"name": name}} | known.get(name, sums)


@pytest.mark.parametrize("name", [name for name in BUILTIN["workflow"] if name != "graph"])
def test_a_workflow_takes_two_steps(name: str, data: Path, model: Path) -> None:
    chosen = parts(name, data)
    run = trained(config(name, chosen, model), data / "run")
    lines = (run.folder / "metrics.jsonl").read_text().splitlines()
    steps = [json.loads(line) for line in lines]
    assert run.step == 2 and [step["failed"] for step in steps[:2]] == [0, 0]
    assert f"tokens/{next(iter(run.config.roles))}" in steps[0]


def config(name: str, chosen: dict[str, Any], model: Path) -> dict[str, Any]:
    options = {k: Path(v) if k == "corpus" else v for k, v in chosen["workflow"].items() if k != "name"}
    return chosen | {
        "steps": 2,
        "tasks_per_step": 1,
        "episodes_per_task": 2,
        "policies": {"all": {"model": str(model), "lr": 1e-2, "lora": {"rank": 2}}},
        "roles": dict.fromkeys(find("workflow", name)(**options).roles, "all"),
        "algorithm": "grpo",
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
    golds = golden(run, run.tasks.tasks)
    assert [gold.episode.reward for gold in golds] == [1.0], golds[0].episode.answer
    probes = broken(run, run.tasks.tasks, golds)
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
