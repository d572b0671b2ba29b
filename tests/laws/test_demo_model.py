"""Every algorithm on real weights: five steps without a NaN, and a run cut in two that ends as the straight one."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from coterie.config.registry import BUILTIN
from coterie.models.base import Base
from coterie.models.store import resolve
from tests.runs import resumed, trained

pytestmark = pytest.mark.slow

SUMS = Path(__file__).parents[1] / "sums.py"
RECIPE = Path(__file__).parents[2] / "recipes" / "demo.yaml"
NEEDS: dict[str, dict[str, Any]] = {  # options that an algorithm requires
    "dr_grpo": {"reduce_length": 12},
    "vdn": {"warmup": 2},
    "qmix": {"warmup": 2},
    "at_grpo": {"siblings": 2},
    "cory": {"swap": 2},
}
CHAIN = {
    "name": "chain",
    "roles": ["reasoner", "actor"],
    "systems": {
        "reasoner": "You are a calculator. You reply with the result only.",
        "actor": "You reply with one number only.",
    },
    "prompts": {"reasoner": "{question} = ?", "actor": "{reasoner}\nWhat is the result?"},
}


def config(algorithm: str, shared: bool) -> dict[str, Any]:
    """The demo as a chain with one-digit sums, so that some answers are right from the start."""
    tree = yaml.safe_load(RECIPE.read_text())
    tree |= {"workflow": CHAIN, "sampling": {"temperature": 0.6}, "learning": {}}
    tree["policies"] = {name: {"model": "demo", "lr": 5e-4} for name in ("reasoner", "actor")}
    tree["roles"] = {name: {"policy": name, "max_tokens": 12} for name in tree["policies"]}
    if shared:
        tree["policies"] = {"both": {"model": "demo", "lr": 5e-4}}
        tree["roles"] = {name: role | {"policy": "both"} for name, role in tree["roles"].items()}
    tree |= {"env": f"{SUMS}:Sums", "reward": "native"}
    tree["algorithm"] = {"name": algorithm} | NEEDS.get(algorithm, {})
    small = {"steps": 5, "tasks_per_step": 2, "episodes_per_task": 4, "eval": {"tasks": 2}, "checkpoint": {"every": 3}}
    return tree | small | {"device": "cpu"}


def metrics(folder: Path) -> list[dict[str, float]]:
    """All metrics but times and speeds, which differ between runs."""
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    timed = ("seconds/", "time", "tokens_per_second")
    return [{name: value for name, value in row.items() if not name.startswith(timed)} for row in rows]


@pytest.mark.parametrize("shared", [False, True], ids=["adapter per role", "shared policy"])
@pytest.mark.parametrize("algorithm", BUILTIN["algorithm"])
def test_five_steps_on_real_weights_and_three_and_two_are_the_same(
    algorithm: str, shared: bool, tmp_path: Path
) -> None:
    if algorithm == "cory" and shared:
        pytest.skip("CORY is a matter of two policies")
    tree = config(algorithm, shared)
    straight = trained(tree, tmp_path / "straight")
    rows = metrics(straight.folder)
    assert len(rows) == 6
    assert all(math.isfinite(value) for row in rows for value in row.values())
    policies = tree["policies"]
    # A step without a learning signal trains no policy, and so measures no gap.
    gaps = [row[f"{policy}/logprob_gap"] for row in rows for policy in policies if f"{policy}/logprob_gap" in row]
    assert gaps and max(gaps) < 1e-4
    trained(tree | {"steps": 3}, tmp_path / "halves")
    again = resumed(tree, tmp_path / "halves")
    assert metrics(again.folder) == rows
    for policy, learner in straight.learners.items():
        for name, parameter in learner.parameters().items():
            assert torch.equal(parameter, again.learners[policy].parameters()[name]), (policy, name)


def test_our_own_forward_is_used_in_half_precision_too() -> None:
    """Without it there would be no CUDA graphs for this model."""
    assert Base(resolve("demo"), "cpu", torch.bfloat16).forward is not None
