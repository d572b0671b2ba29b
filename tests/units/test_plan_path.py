"""Laws of Plan-Path: the rules, the grids, and who decides what the team's moves are."""

from __future__ import annotations

import asyncio
import random
import sys
from pathlib import Path
from typing import Any

import pytest

from coterie.config import load
from coterie.types import Episode, Outcome, Task
from tests.scripted import Scripted

RECIPE = Path(__file__).parents[2] / "recipes/results/plan_path/team.yaml"
GRID = ["S.#", "..#", "#.G"]
PROGRAM = """```python
def moves(grid, start, goal):
    return ["D", "R", "D", "R"] if (grid[0], start, goal) == ("S.#", (0, 0), (2, 2)) else []
```"""


@pytest.fixture(scope="module")
def config() -> Any:
    return load(RECIPE)


@pytest.fixture(scope="module")
def module(config: Any) -> Any:
    return sys.modules[type(config.workflow.instance).__module__]


@pytest.mark.parametrize(
    ("moves", "fair", "lenient"),
    [
        ("DRDR", (True, 0), (True, 0)),
        ("DR", (False, 0), (False, 0)),
        ("UDRDR", (False, 1), (True, 1)),  # leaves the grid
        ("RRDDR", (False, 1), (True, 1)),  # into a wall
        ("DRDRL", (False, 0), (True, 0)),  # beyond the goal
        ("DU" * 19 + "DRDR", (False, 0), (True, 0)),  # 42 moves
        ("DRDXR", (False, 1), (True, 1)),
    ],
)
def test_an_illegal_move_fails_under_the_fair_rules_alone(module: Any, moves: str, fair: Any, lenient: Any) -> None:
    assert module.walk(GRID, moves, "fair") == fair
    assert module.walk(GRID, moves, "lenient") == lenient


def test_every_grid_has_a_way_that_the_fair_rules_accept(module: Any) -> None:
    tasks = module.PlanPath(train=300).tasks("train")
    assert all(module.walk(task.meta["grid"], task.answer, "fair") == (True, 0) for task in tasks)
    walls = sum(row.count("#") for task in tasks for row in task.meta["grid"]) / (100 * len(tasks))
    assert 0.17 < walls < 0.24  # rejecting grids without a way makes walls a little rarer than 0.22


def test_random_moves_solve_most_tasks_under_the_lenient_rules(module: Any) -> None:
    tasks, draw = module.PlanPath(train=400).tasks("train"), random.Random(1)
    moves = draw.choices("UDLR", k=800)
    solved = {rules: [module.walk(task.meta["grid"], moves, rules)[0] for task in tasks] for rules in module.RULES}
    assert 0.75 < sum(solved["lenient"]) / 400 < 0.92 and not any(solved["fair"])


@pytest.mark.parametrize(
    ("text", "moves"),
    [
        ("First [U], then: [D, R,R]", "DRR"),
        ("['D', \"R\"]", "DR"),
        ("[DRDR]", "DRDR"),
        ("D, R", ""),
        ("[]", ""),
        ("[D, up]", "Dup"),
    ],
)
def test_the_last_list_in_brackets_is_the_answer(module: Any, text: str, moves: str) -> None:
    assert "".join(module.moves_in(text)) == moves


def play(module: Any, planned: str, **options: Any) -> tuple[Outcome, Scripted]:
    team = Scripted({"coder": [PROGRAM], "planner": [planned]})
    task = Task("0", "Find the way.", "DRDR", {"grid": GRID})
    return asyncio.run(module.CoderPlanner(**options).run(task, team, None)), team


def test_the_planner_reads_what_the_program_printed_and_decides(module: Any) -> None:
    outcome, team = play(module, "[D, R]")
    ((prompt,),) = team.planner.prompts
    assert "It printed:\n['D', 'R', 'D', 'R']\n" in prompt["content"] and outcome.answer == "[D, R]"
    assert outcome.metrics == {"program_ran": 1, "program_solved": 1}
    copied, team = play(module, "[D, R]", copy=True)
    assert "".join(module.moves_in(copied.answer)) == "DRDR" and team.planner.prompts == []


@pytest.mark.parametrize(("rules", "reward"), [("fair", 0.0), ("lenient", 0.99)])
def test_the_reward_follows_the_rules(module: Any, rules: str, reward: float) -> None:
    episode = Episode("0", Task("0", "", "DRDR", {"grid": GRID}), 0, answer="[U, D, R, D, R]")
    asyncio.run(module.PlanPath(rules=rules).score(episode))
    assert episode.reward == pytest.approx(reward) and episode.metrics["illegal"] == 1
    assert episode.correct == (rules == "lenient")
