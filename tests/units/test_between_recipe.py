"""What recipes/maporl/between.yaml says of its task is so."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from coterie.config import load
from coterie.config.conflicts import check_conflicts
from coterie.envs.base import TaskEnv

RECIPE = load(Path(__file__).parents[2] / "recipes/maporl/between.yaml")
ENV: TaskEnv = RECIPE.env.instance
TRAIN, TEST = ENV.tasks("train"), ENV.tasks("test")


def test_the_recipe_is_sound_and_held_out_questions_occur_nowhere_else() -> None:
    check_conflicts(RECIPE)
    assert len(TRAIN) == 1000 and len(TEST) >= RECIPE.eval.tasks
    examples = {question for question, _ in RECIPE.workflow.instance.examples}
    assert not {task.prompt for task in TEST} & ({task.prompt for task in TRAIN} | examples)
    assert {len(str(number)) for task in [*TRAIN, *TEST] for number in task.answer} == {2}


def test_no_single_number_answers_more_than_36_percent_of_the_held_out_questions() -> None:
    bounds = [task.answer for task in TEST]
    assert max(sum(a < number < b for a, b in bounds) for number in range(100)) <= 0.36 * len(TEST)


@pytest.mark.parametrize(
    ("text", "reward"),
    [("24", 1.0), ("It is 44.", 1.0), ("23", 0.0), ("45", 0.0), ("7", 0.0), ("24 or 99", 0.0), ("", 0.0)],
)
def test_the_last_number_must_lie_strictly_inside(text: str, reward: float) -> None:
    assert asyncio.run(ENV.with_reward("native", {}, 1.0).grade(text, [23, 45])) == reward
