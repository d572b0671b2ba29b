"""In each of the five teams, every role's own reward moves with what that role alone says.

The team plays well: everyone reacts to what it reads. Then one role at a time says something wrong, nothing, or
something that no parser can read, and earns something else.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from coterie.envs.base import attach_reward
from coterie.envs.code import Mbpp
from coterie.envs.dataset_env import Gsm8k, HotpotQa
from coterie.envs.swe.env import Swe as Projects
from coterie.rollout.collector import Collector
from coterie.statistics import mean
from coterie.types import Env, Episode, Message, Turn, Workflow
from coterie.workflows.deep_research import DeepResearch
from coterie.workflows.deepcoder import DeepCoder
from coterie.workflows.math_tool import MathTool
from coterie.workflows.search import Search
from coterie.workflows.swe import Swe
from tests.scripted import Scripted, ScriptedAgent

Reply = Callable[[str], str]  # all that a role reads → what it says
MALFORMED = "<answer>\\boxed{```python\n(((<tool_call>{<<<<<<< SEARCH"


class Reacts(ScriptedAgent):
    """Says what its one line, a function, makes of what it reads."""

    async def say(self, messages: str | Sequence[Message], **sampling: Any) -> Turn:
        read = messages if isinstance(messages, str) else "\n".join(message["content"] for message in messages)
        (reply,) = self.replies
        self.replies = [reply(read), reply]  # type: ignore[list-item,operator]
        return await super().say(messages, **sampling)


@dataclass(frozen=True)
class Case:
    """A team at work on a task that it solves."""

    workflow: Workflow
    env: Env
    replies: Mapping[str, Reply]
    wrong: Mapping[str, str]  # what each role says when it is wrong


def earned(case: Case, replies: Mapping[str, Reply]) -> dict[str, list[float]]:
    """What each turn of each role is worth by itself."""
    task = case.env.tasks("train")[0]
    team = Scripted({role: [reply] for role, reply in replies.items()}, Reacts)  # type: ignore[list-item]
    collector = Collector(case.workflow, case.env, None, {}, 1, 60.0, None)  # type: ignore[arg-type]

    async def go() -> list[Turn]:
        outcome = await case.workflow.run(task, team, case.env.open(task))
        episode = Episode("e", task, 0, turns=team.said())
        await collector.score(episode, outcome)
        return episode.turns

    turns = asyncio.run(go())
    assert all(turn.reward is not None for turn in turns), "every turn is judged"
    return {role: [float(turn.reward or 0) for turn in turns if turn.role == role] for role in replies}


def file(folder: Path, *rows: Mapping[str, Any]) -> Path:
    path = folder / f"{len(list(folder.iterdir()))}.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def program(body: str) -> str:
    return f"```python\n{body}\n```"


def deepcoder(folder: Path) -> Case:
    half, right = (program(f"def add(a, b):\n    return a {sign} b") for sign in "*+")
    tests = ["assert add(1, 2) == 3", "assert add(2, 2) == 4"]
    env = attach_reward(Mbpp(train=file(folder, {"text": "Add.", "code": right, "test_list": tests})), "code", {}, 10)
    replies = {
        "generator": lambda read: half,
        "test_runner": lambda read: "Use + instead of *." if "add(1, 2) == 3" in read else "All is well.",
        "refiner": lambda read: right if "Use +" in read else half,
    }
    wrong = {"generator": program("def add(a, b): pass"), "test_runner": "All is well.", "refiner": program("x = 1")}
    return Case(DeepCoder(max_refinement_iterations=1), env, replies, wrong)


def math_tool(folder: Path) -> Case:
    env = attach_reward(Gsm8k(train=file(folder, {"question": "20 + 22?", "answer": "#### 42"})), "number", {}, 20)
    replies = {
        "analyzer": lambda read: "Add both numbers.",
        "executor": lambda read: program(f"print(20 {'+' if 'Add' in read else '-'} 22)"),
        "verifier": lambda read: f"Verdict: {'correct' if '42' in read else 'incorrect'}",
    }
    wrong = {"analyzer": "Subtract.", "executor": program("print(41)"), "verifier": "Verdict: incorrect"}
    return Case(MathTool(max_refinement_iterations=1), env, replies, wrong)


def swe(folder: Path) -> Case:
    test = "import unittest, ops\n\nclass T(unittest.TestCase):\n    def test(self):\n        "
    test += "self.assertEqual(ops.add(2, 3), 5)\n"
    for name, text in {"ops.py": "def add(a, b):\n    return a - b\n", "test_ops.py": test}.items():
        (folder / "calc").mkdir(exist_ok=True)
        (folder / "calc" / name).write_text(text)
    row = {"issue": "add subtracts", "repository": "calc", "tests": "python -m unittest test_ops"}
    change = "ops.py\n<<<<<<< SEARCH\n    return a - b\n=======\n    return {}\n>>>>>>> REPLACE\n"
    replies = {
        "analyzer": lambda read: "Change ops.py.",
        "writer": lambda read: change.format("a + b") if "return a - b" in read else "Which file?",
        "validator": lambda read: f"Verdict: {'pass' if 'return a + b' in read else 'fail'}",
    }
    wrong = {"analyzer": "The README.", "writer": change.format("b - a"), "validator": "Verdict: fail"}
    return Case(Swe(max_refinement_iterations=1), Projects(train=file(folder, row)), replies, wrong)


CORPUS = [
    {"title": "Lima", "text": "Lima is the capital of Peru."},
    {"title": "Peru", "text": "Peru is a country, known for Machu Picchu."},
    {"title": "Quito", "text": "Quito is the capital of Ecuador."},
]


def articles(folder: Path) -> Env:
    facts = [["Peru", 0], ["Lima", 0]]
    row = {"question": "Which city rules the country of Machu Picchu?", "answer": "Lima", "supporting_facts": facts}
    return attach_reward(HotpotQa(train=file(folder, row | {"context": []})), "qa", {}, 20)


def answer(read: str) -> str:
    return "So [1]. <answer>Lima</answer>" if "Lima is the capital" in read else "<answer>Quito</answer>"


def first_document(read: str) -> str:
    found = re.findall(r"^\[1\] [^\n]*\n([^\n]*)", read, re.MULTILINE)
    return found[-1] if found else "NOTHING"


def search(folder: Path) -> Case:
    replies = {
        "query_optimizer": lambda read: "capital of Peru" if "Peru is a country" in read else "Machu Picchu",
        "retriever": first_document,
        "extractor": answer,
    }
    wrong = {"query_optimizer": "weather", "retriever": "NOTHING", "extractor": "<answer>Quito</answer>"}
    return Case(Search(corpus=file(folder, *CORPUS), documents=1), articles(folder), replies, wrong)


def deep_research(folder: Path) -> Case:
    def gatherer(read: str) -> str:
        if "[1] " in read:
            return first_document(read)
        (part,) = re.findall(r"Find out: ([^\n]*)", read)
        return f"<tool_call>{json.dumps({'name': 'search', 'arguments': {'query': part}})}</tool_call>"

    replies = {"planner": lambda read: "Machu Picchu\ncapital of Peru", "gatherer": gatherer, "synthesizer": answer}
    wrong = {"planner": "the weather", "gatherer": "I do not know.", "synthesizer": "<answer>Quito</answer>"}
    return Case(DeepResearch(corpus=file(folder, *CORPUS), documents=1), articles(folder), replies, wrong)


TEAMS = {each.__name__: each for each in (deepcoder, math_tool, swe, search, deep_research)}
ROLES = {
    "deepcoder": ("generator", "test_runner", "refiner"),
    "math_tool": ("analyzer", "executor", "verifier"),
    "swe": ("analyzer", "writer", "validator"),
    "search": ("query_optimizer", "retriever", "extractor"),
    "deep_research": ("planner", "gatherer", "synthesizer"),
}


WRONG, EMPTY, UNREADABLE = "wrong", "empty", "unreadable"
KINDS = (
    *((team, kind) for team in ("math_tool", "search", "deep_research") for kind in (WRONG, EMPTY, UNREADABLE)),
    # Each play of these runs tests.
    *((team, WRONG) for team in ("deepcoder", "swe")),
    *(
        pytest.param(team, kind, marks=pytest.mark.slow)
        for team in ("deepcoder", "swe")
        for kind in (EMPTY, UNREADABLE)
    ),
)


@pytest.mark.parametrize(("team", "kind"), KINDS)
def test_every_roles_reward_moves_with_what_it_alone_says(team: str, kind: str, tmp_path: Path) -> None:
    case = TEAMS[team](tmp_path)
    assert tuple(case.workflow.roles) == tuple(case.replies) == ROLES[team]
    well = earned(case, case.replies)
    assert all(max(well[role]) > 0 for role in ROLES[team]), well
    for role in ROLES[team]:
        text = {WRONG: case.wrong[role], EMPTY: "", UNREADABLE: MALFORMED}[kind]
        instead = earned(case, {**case.replies, role: lambda read, text=text: text})
        assert mean(instead[role]) < mean(well[role]), (role, instead)
