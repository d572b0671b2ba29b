"""What recipes/demo.yaml says of its task is so."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from coterie.config import load
from coterie.config.conflicts import check_conflicts
from coterie.types import Task, Turn
from tests.scripted import Scripted, ScriptedAgent

RECIPE = load(Path(__file__).parents[2] / "recipes" / "demo.yaml")
TASK = Task("t", "3 + 5 + 9", "17")


def answered(first: str, second: str, agent: type[ScriptedAgent] = ScriptedAgent) -> tuple[str, Scripted]:
    team = Scripted({"first": [first], "second": [second]}, agent)
    return asyncio.run(RECIPE.workflow.instance.run(TASK, team, None)), team


def test_the_demo_is_a_sound_config() -> None:
    check_conflicts(RECIPE)


def test_the_demo_adds_three_numbers_from_0_to_10_and_holds_some_sums_out() -> None:
    train, test = RECIPE.env.instance.tasks("train"), RECIPE.env.instance.tasks("test")
    terms = [[int(term) for term in task.prompt.split(" + ")] for task in [*train, *test]]
    assert all(len(numbers) == 3 for numbers in terms)
    assert {number for numbers in terms for number in numbers} == {*range(11)}
    assert [str(sum(numbers)) for numbers in terms] == [task.answer for task in [*train, *test]]
    assert len(test) == RECIPE.eval.tasks and not {t.prompt for t in train} & {t.prompt for t in test}


def test_the_second_role_sees_what_the_first_found_and_not_the_first_two_numbers() -> None:
    answer, team = answered("3 + 5 = 8", "8 + 9 = 17")
    assert answer == "8 + 9 = 17"
    assert team.first.prompts[0][-1]["content"] == "3 + 5 = ?"
    assert team.second.prompts[0][-1]["content"] == "8 + 9 = ?"
    assert team.first.prompts[0][:-1] == team.second.prompts[0][:-1]  # the example


class CutOff(ScriptedAgent):
    """Talks on until the limit."""

    async def say(self, messages: Any, **sampling: Any) -> Turn:
        return replace(await super().say(messages, **sampling), stop="length")


@pytest.mark.parametrize(("first", "agent"), [("I do not know.", ScriptedAgent), ("3 + 5 = 8, and", CutOff)])
def test_where_the_first_finds_no_number_or_is_cut_off_nobody_goes_on(first: str, agent: type[ScriptedAgent]) -> None:
    answer, team = answered(first, "8 + 9 = 17", agent)
    assert answer == "" and team.second.prompts == []


@pytest.mark.parametrize("message", ["hello", "what is 3 plus 5"])
def test_a_message_that_is_no_sum_is_answered_with_what_would_be_one(message: str) -> None:
    with pytest.raises(ValueError, match=rf"adds three numbers, as in '3 \+ 5 \+ 9', and was asked '{message}'"):
        asyncio.run(RECIPE.workflow.instance.run(Task("t", message, None), Scripted({}), None))
