"""No answer whatever makes a parser or a grader hang or crash.

A thousand texts that parsers choke on go to each. What starts a process for every text does so for a few of them, and
for all in a slow test.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from coterie.envs.base import attach_reward
from coterie.envs.code import Mbpp
from coterie.envs.reasoning_gym import ReasoningGym
from coterie.envs.rows import Rows
from coterie.envs.swe.checkout import Checkout
from coterie.envs.swe.edits import EditError, edited
from coterie.envs.swe.env import Swe
from coterie.rewards.answer_extraction import (
    after_hashes,
    boxed,
    final_answer,
    last_number,
    marked_answer,
    stated_answer,
    tagged,
)
from coterie.rewards.choice import choice, letter
from coterie.rewards.code.grader import code_in
from coterie.rewards.exact_match import exact, number
from coterie.rewards.format import format as form
from coterie.rewards.length import length
from coterie.rewards.nli import label, nli
from coterie.rewards.qa import qa, words
from coterie.tools.call_parser import read_calls
from coterie.tools.python import python_tool
from coterie.types import Env, Episode, Weighted
from coterie.workflows.deep_research import cited
from coterie.workflows.retrieval import Evidence
from coterie.workflows.verdict_parsing import items, verdict
from coterie.workflows.vote import ballot

PIECES = [
    "\\boxed{", "}", "{", "\\", "\\{", "<answer>", "</answer>", "####", "answer is ", "answer:", "```python\n", "```",
    "\\frac{1}{", "\\left(", "(", "[", "9", "1,234", "1/0", "e99", "\0", "\ud800", "\u202e", "😀", " ", "\n", "*", "a",
    "A ", "entail", "contradict neutral ", "\\text", "\\sqrt", "^", "$", "-", "x=", "<think>", "<tool_call>",
    '{"name":', "<|python_tag|>", "verdict: ", "[1]", "a.py\n<<<<<<< SEARCH\n", "=======\n", ">>>>>>> REPLACE\n",
    "--- a\n+++ b\n", "@@ -1 +1 @@\n", "1. ",
]  # fmt: skip


def hostile() -> list[str]:
    """1,000 answers: huge, deep, broken, or made for a regular expression to backtrack."""
    draw = random.Random(0)
    long = [piece * (30_000 // len(piece)) for piece in PIECES]
    deep = [f"{piece * 3000}5{'}' * 3000}" for piece in ("\\boxed{", "\\frac{1}{", "\\sqrt{", "{")]
    spaced = [f"{word}{' ' * 30_000}{end}" for word in ("answer", "\\boxed", "\\text", "1/") for end in ("", "0", "{")]
    mixed = ["".join(draw.choices(PIECES, k=draw.randint(0, 60))) for _ in range(1000 - len(long + deep + spaced))]
    return long + deep + spaced + mixed


TOOLS = {"python": python_tool()}
KNOWN = Evidence(frozenset({"Paris"}), ("paris",))


def edits(text: str) -> dict[str, str] | str:
    try:
        return edited(text, {"a.py": "one\ntwo\n"})
    except EditError as error:  # what cannot be made is said in words
        return str(error)


WORK: list[Callable[[str], Any]] = [
    last_number, boxed, tagged, after_hashes, stated_answer, marked_answer, final_answer,
    label, letter, words, ballot, code_in, verdict,
    cited, edits, KNOWN.answered_in,
    lambda text: items(text, 3),
    lambda text: read_calls(text, TOOLS),
    lambda text: exact(text, "5"),
    lambda text: number(text, "5"),
    lambda text: qa(text, "Paris"),
    lambda text: nli(text, "neutral"),
    lambda text: choice(text, "B"),
    lambda text: form(text, None, pattern=r"^<think>.*</think>", sections=("think", "answer")),
    lambda text: length(text, None, most=10, margin=5),
]  # fmt: skip


def test_no_answer_makes_a_parser_or_a_light_grader_hang_or_crash() -> None:
    answers = hostile()
    assert len(answers) == 1000
    for work in WORK:
        started = time.process_time()
        for answer in answers:
            work(answer)
        assert time.process_time() - started < 3.0, work


def test_what_is_graded_at_once_takes_time_in_proportion_to_the_text() -> None:
    """Whatever the text is done in a moment, so no deadline is needed."""
    texts = [
        piece * (300_000 // len(piece)) for piece in ("9", "1,234", "1/0", "9e9", "-", ".5", "1/" + "0" * 999, "ß")
    ]
    for text in texts:
        for reward in (exact, number):
            started = time.process_time()
            reward(text, "5")
            assert time.process_time() - started < 0.5, (reward, text[:9])


# For a computer algebra system: those that are not parsed, and one that runs out of processor time.
BOMBS = [r"\boxed{9^{9^{9^{9}}}}", r"\boxed{10000000!!}", r"\boxed{(x+y+z+w)^{999}}"]


def rows(folder: Path, row: dict[str, Any]) -> Path:
    (folder / "rows.jsonl").write_text(json.dumps(row) + "\n")
    return folder / "rows.jsonl"


def question(folder: Path, reward: str, **options: Any) -> Env:
    return attach_reward(Rows(rows(folder, {"question": "?", "answer": "5"})), reward, options, 60.0)


def composed(folder: Path) -> Env:
    parts = [Weighted(name, options, None, 0.5) for name, options in (("math", {"seconds": 60.0}), ("qa", {}))]
    return question(folder, "compose", parts=tuple(parts))


def programs(folder: Path) -> Env:
    row = {"text": "Add.", "code": "", "test_list": ["assert add(1, 2) == 3"]}
    return attach_reward(
        Mbpp(rows(folder, row | {"code": "x = 1"})), "code", {"test_seconds": 1.0, "seconds": 3.0}, 3.0
    )


def project(folder: Path) -> Env:
    (folder / "calc").mkdir()
    (folder / "calc" / "a.py").write_text("one\ntwo\n")
    return Swe(rows(folder, {"issue": "?", "repository": "calc", "tests": "python -c 1/0"}), seconds=3.0)


ENVS: dict[str, Callable[[Path], Env]] = {
    "math": lambda folder: question(folder, "math", seconds=60.0),
    "qa": lambda folder: question(folder, "qa"),
    "nli": lambda folder: attach_reward(Rows(rows(folder, {"question": "?", "answer": "neutral"})), "nli", {}, 3.0),
    "choice": lambda folder: attach_reward(Rows(rows(folder, {"question": "?", "answer": "B"})), "choice", {}, 3.0),
    "format": lambda folder: question(folder, "format", pattern="^<think>", sections=()),
    "length": lambda folder: question(folder, "length", most=10),
    "compose": composed,
    "code": programs,
    "native": lambda folder: attach_reward(ReasoningGym("chain_sum", size=2, test_size=1), "native", {}, 3.0),
    "swe": project,
}


def scored(env: Env, answers: list[str]) -> dict[str, float | BaseException]:
    """What each answer earns, or what its grader raises."""
    task = env.tasks("train")[0]
    episodes = [Episode(str(number), task, 0, answer=answer) for number, answer in enumerate(answers)]

    async def all_of_them() -> list[BaseException | None]:
        return await asyncio.gather(*(env.score(episode) for episode in episodes), return_exceptions=True)

    raised = asyncio.run(all_of_them())
    return {e.answer: e.reward if error is None else error for e, error in zip(episodes, raised, strict=True)}


def survives(name: str, answers: list[str], folder: Path) -> None:
    """Every answer gets a grade; what a computer algebra system never gets done with is wrong."""
    grades = scored(ENVS[name](folder), [*answers, *BOMBS])
    assert all(isinstance(grade, float) and -1 <= grade <= 1 for grade in grades.values()), grades
    assert name in ("format", "length") or [grades[bomb] for bomb in BOMBS] == [0.0] * len(BOMBS)


@pytest.mark.parametrize("name", list(ENVS))
def test_a_few_of_them_are_survived_by_every_grader_as_a_run_calls_it(name: str, tmp_path: Path) -> None:
    survives(name, hostile()[:: 40 if name in ("code", "swe") else 20], tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", list(ENVS))
def test_all_of_them_are_survived_by_every_grader_as_a_run_calls_it(name: str, tmp_path: Path) -> None:
    survives(name, hostile(), tmp_path)


def test_a_change_to_a_project_is_made_or_refused_whatever_it_says() -> None:
    checkout = Checkout({"a.py": b"one\ntwo\n"}, [])
    for answer in hostile():
        try:
            checkout.edited(answer)
        except EditError:
            continue
