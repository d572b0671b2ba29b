"""docs/metrics.md describes every metric that a run writes, and no other."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from tests.runs import naming_config, trained

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "metrics.md").read_text()
# The first cell of every row of the tables whose first column is `metric`.
TABLES = re.findall(r"^\| metric \|.*\n\|[-|]+\|\n((?:\|.*\n)+)", PAGE, re.MULTILINE)
DESCRIBED = [
    name for table in TABLES for row in table.splitlines() for name in re.findall(r"`([^`]+)`", row.split("|")[1])
]

GAME = {"tasks_per_step": 2, "episodes_per_task": 4, "steps": 2}
RUNS: dict[str, dict[str, Any]] = {
    "grpo": GAME
    | {
        "algorithm": {"name": "grpo", "drop_constant": True, "kl": 0.01},
        "credit": {"name": "difference"},
        "opponents": {"every": 1, "keep": 1},
        "collapse": {"steps": 2},
        "eval": {"every": 1, "tasks": 2, "episodes_per_task": 2, "temperature": 1.0},
    },
    "happo": GAME | {"algorithm": {"name": "happo", "minibatches": 2}},
    "qmix": GAME | {"algorithm": {"name": "qmix", "warmup": 0, "value_fits": 2}},
    "refine": GAME
    | {
        "policies": {name: {"model": "", "lora": {"rank": 2}} for name in ("optimizer", "evaluator")},
        "roles": {"optimizer": "optimizer", "evaluator": "evaluator"},
        "workflow": {"name": "refine", "max_rounds": 2},
        "env": {"name": "rows", "train": "rows.jsonl", "test": "rows.jsonl"},
        "reward": "rewards.py:sometimes",
        "rollout": {"max_failed": 1.0},
        "algorithm": {"name": "ppo", "gamma_turn": 0},
        "credit": "own",
    },
}
REWARD = """def sometimes(answer, truth):
    if len(answer) % 2:
        raise ValueError("odd")
    return len(answer) / 100
"""


@pytest.fixture(scope="module")
def written(
    model_folder: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Mapping[str, tuple[Path, set[str]]]:
    """The folder of each run, and the names in its metrics.jsonl with roles, policies and critics put as <…>."""
    found = {}
    for name, changes in RUNS.items():
        folder = tmp_path_factory.mktemp(name)
        (folder / "rewards.py").write_text(REWARD)
        (folder / "rows.jsonl").write_text(
            "".join(json.dumps({"question": f"{n}?", "answer": n}) + "\n" for n in "abcd")
        )
        tree = naming_config(model_folder("llama")) | changes
        for policy in tree["policies"].values():
            policy["model"] = str(model_folder("llama"))
        trained(tree, folder)
        rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        found[name] = folder, {described(key, tree) for row in rows for key in row}
    return found


def described(key: str, tree: Mapping[str, Any]) -> str:
    """The name under which the page describes a metric."""
    bare = key.removeprefix("eval/")
    for kind in ("policies", "roles"):
        for name in tree[kind]:
            holder = {"policies": f"^(stderr/)?{name}/", "roles": f"(?<=/){name}$"}[kind]
            bare = re.sub(holder, {"policies": r"\1<policy>/", "roles": "<role>"}[kind], bare)
    bare = re.sub(r"^critic/team/", "critic/<critic>/", bare)
    bare = re.sub(r"^(debate/\w+)/\d+$", r"\1/<round>", bare)
    bare = re.sub(r"^seconds/\w+$", "seconds/<phase>", bare)
    bare = re.sub(r"^failed/\w+$", "failed/<exception>", bare)
    bare = re.sub(r"^pass@(?!1$)\d+$", "pass@<k>", bare)
    return f"eval/{bare}" if f"eval/{bare}" in DESCRIBED else bare


def test_the_page_describes_a_metric_once() -> None:
    assert len(DESCRIBED) > 80 and len(DESCRIBED) == len(set(DESCRIBED))


@pytest.mark.parametrize("run", RUNS)
def test_every_metric_that_a_run_writes_is_described(run: str, written: Mapping[str, tuple[Path, set[str]]]) -> None:
    _, names = written[run]
    assert len(names) > 20 and names - set(DESCRIBED) == set()


def test_tensorboard_has_the_names_of_the_rows(written: Mapping[str, tuple[Path, set[str]]]) -> None:
    folder, _ = written["happo"]
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    events = EventAccumulator(str(folder / "tensorboard"))
    events.Reload()
    assert set(events.Tags()["scalars"]) == {name for row in rows for name in row} - {"step", "time"}


def test_nothing_is_described_that_the_code_does_not_write() -> None:
    forms = set(written_forms())
    assert {"{}/{}", "reward", "kl_step"} <= forms
    assert [name for name in DESCRIBED if not is_written(name, forms)] == []


def is_written(name: str, forms: set[str]) -> bool:
    """Whether the code has the name itself, or puts it together out of a prefix and the rest."""
    form = re.sub(r"<\w+>", "{}", name)
    if form in forms:
        return True
    cuts = [cut.start() for cut in re.finditer("/", form)]
    return any(form[:cut] + "/{}" in forms | {"{}/{}"} and form[cut + 1 :] in forms for cut in cuts)


def written_forms() -> Iterator[str]:
    """Every text of the package, with {} for what an f-string fills in; fields of records name metrics, too."""
    for path in (ROOT / "coterie").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.JoinedStr):
                yield "".join(part.value if isinstance(part, ast.Constant) else "{}" for part in node.values)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield node.value
            elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                yield node.target.id
            elif isinstance(node, ast.keyword) and node.arg:
                yield node.arg


def test_every_metric_of_a_workflow_is_described() -> None:
    written = {name for path in (ROOT / "coterie" / "workflows").glob("*.py") for name in workflow_metrics(path)}
    fields = {"question"}  # of prompts
    assert len(written) > 35 and written - set(DESCRIBED) - fields == set()


def workflow_metrics(path: Path) -> Iterator[str]:
    """The keys of dictionaries in functions that return metrics, and of those that an Outcome is given."""
    for function in ast.walk(ast.parse(path.read_text())):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            nodes = list(ast.walk(function))
            outcomes = [node for node in nodes if isinstance(node, ast.Call) and ast.unparse(node.func) == "Outcome"]
            within = [inner for call in outcomes for argument in call.args[1:] for inner in ast.walk(argument)]
            named = {node.id for node in within if isinstance(node, ast.Name)}
            assigned = [
                n.value for n in nodes if isinstance(n, ast.Assign) and {ast.unparse(t) for t in n.targets} & named
            ]
            if function.returns is not None and ast.unparse(function.returns) == "Metrics":
                assigned.append(function)
            for root in [*within, *assigned]:
                yield from keys_of_dicts(root)


def keys_of_dicts(root: ast.AST) -> Iterator[str]:
    for node in ast.walk(root):
        keys = node.keys if isinstance(node, ast.Dict) else []
        keys += [node.slice] if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store) else []
        yield from (key.value for key in keys if isinstance(key, ast.Constant) and isinstance(key.value, str))
