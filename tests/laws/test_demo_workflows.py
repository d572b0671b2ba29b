"""Every workflow on real weights: two training steps in which all roles speak that have something to do."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from coterie.episode_files import EpisodeFile
from tests.runs import trained
from tests.teams import parts, written

pytestmark = pytest.mark.slow

SUMS = f"{Path(__file__).parents[1] / 'sums.py'}:Sums"
WORKFLOWS: dict[str, tuple[list[str], dict[str, Any]]] = {  # roles, options
    "single": (["solver"], {}),
    "chain": (["reasoner", "actor"], {"roles": ["reasoner", "actor"]}),
    "debate": (["first", "second", "third"], {}),
    "vote": (["solver"], {}),
    "summarize": (["first", "second", "third", "summarizer"], {}),
    "mixture": (["first", "second", "third", "aggregator"], {}),
    "refine": (["optimizer", "evaluator"], {}),
    "orchestrate": (["orchestrator", "worker"], {}),
    "cory": (["pioneer", "observer"], {}),
    "multi_turn": (["guide", "walker"], {"roles": ["guide", "walker"]}),
}


@pytest.mark.parametrize("workflow", list(WORKFLOWS))
def test_two_steps_on_real_weights(workflow: str, tmp_path: Path) -> None:
    roles, options = WORKFLOWS[workflow]
    world = {"env": "hunt", "reward": "native"} if workflow == "multi_turn" else {"env": SUMS, "reward": "native"}
    tree = world | {
        "steps": 2, "tasks_per_step": 1, "episodes_per_task": 2, "device": "cpu", "algorithm": "grpo",
        "policies": {"both": {"model": "demo", "lr": 1e-4}}, "roles": dict.fromkeys(roles, "both"),
        "workflow": {"name": workflow} | options, "sampling": {"max_tokens": 8}, "eval": {"tasks": 1},
    }  # fmt: skip
    run = trained(tree, tmp_path / "run")
    rows = [json.loads(line) for line in (run.folder / "metrics.jsonl").read_text().splitlines()]
    assert all(math.isfinite(value) for row in rows for value in row.values())
    episodes = EpisodeFile(run.folder / "episodes" / "000001.jsonl.gz").rows()
    assert {turn["role"] for episode in episodes for turn in episode["turns"]} == set(roles)
    assert run.learners["both"].version == 2


# The demo model writes no change that can be made, so there is nothing for a validator to judge.
TEAMS: dict[str, tuple[list[str], list[str]]] = {  # who speaks, who may
    "deepcoder": (["generator", "test_runner", "refiner"], []),
    "math_tool": (["analyzer", "executor", "verifier"], []),
    "swe": (["analyzer", "writer"], ["validator"]),
    "search": (["query_optimizer", "retriever", "extractor"], []),
    "deep_research": (["planner", "gatherer", "synthesizer"], []),
}


@pytest.mark.parametrize("team", list(TEAMS))
def test_a_team_takes_two_steps_on_real_weights(team: str, tmp_path: Path) -> None:
    speaking, others = TEAMS[team]
    tree = parts(team, written(tmp_path)) | {
        "steps": 2, "tasks_per_step": 1, "episodes_per_task": 2, "device": "cpu",
        "algorithm": {"name": "grpo", "gamma_turn": 0},
        "policies": {"all": {"model": "demo", "lr": 1e-4}}, "roles": dict.fromkeys([*speaking, *others], "all"),
        "sampling": {"max_tokens": 16}, "eval": {"tasks": 1}, "rollout": {"max_failed": 0.0},
    }  # fmt: skip
    run = trained(tree, tmp_path / "run")
    rows = [json.loads(line) for line in (run.folder / "metrics.jsonl").read_text().splitlines()]
    assert all(math.isfinite(value) for row in rows for value in row.values())
    files = sorted((run.folder / "episodes").glob("*.jsonl.gz"))
    turns = [turn for file in files for row in EpisodeFile(file).rows() for turn in row["turns"]]
    assert set(speaking) <= {turn["role"] for turn in turns} <= {*speaking, *others}
    assert all(turn["reward"] is not None for turn in turns), "every role is judged by what it did"
    assert run.learners["all"].version == 2
