"""Laws of coder and tester on MBPP, and of the recipes around them."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from coterie.config import load
from coterie.rewards.code.grader import Failure, Verdict
from coterie.sandbox import bubblewrap
from coterie.types import Outcome, Task
from tests.scripted import Scripted

REPOSITORY = Path(__file__).parents[2]
RESULTS = REPOSITORY / "recipes" / "results" / "mbpp_tests"
ROW = {
    "task_id": 601,
    "text": "Write a function to add two numbers.",
    "code": "import math\ndef helper(x):\n    return x\ndef add(a, b):\n    return helper(a) + b",
    "test_list": ["assert add(1, 2) == 3", "assert add(5, 5) == 10"],
    "test_setup_code": "",
}
RIGHT, WRONG = "```python\ndef add(a, b):\n    return a + b\n```", "```python\ndef add(a, b):\n    return a * b\n```"


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Any:
    rows = tmp_path_factory.mktemp("mbpp") / "mbpp.jsonl"
    rows.write_text(json.dumps(ROW) + "\n")
    return load(RESULTS / "team.yaml", [f"env.train={rows}", f"env.test={rows}"])


@pytest.fixture(scope="module")
def module(config: Any) -> Any:
    return sys.modules[type(config.workflow.instance).__module__]


@pytest.fixture(scope="module")
def task(config: Any) -> Task:
    (only,) = config.env.instance.tasks("train")
    return only


def play(
    config: Any, task: Task, programs: list[str], tests: list[str], assert_reward: str = "valid"
) -> tuple[Outcome, dict[str, float], Scripted]:
    team = Scripted({"coder": programs, "tester": tests})
    made = type(config.workflow.instance)
    workflow = made(programs=len(programs), calls=len(tests), assert_reward=assert_reward)

    async def both() -> tuple[Outcome, dict[str, float]]:
        outcome = await workflow.run(task, team, config.env.instance.open(task))
        assert outcome.judge is not None

        async def grade(text: str) -> float:
            return 0.0

        return outcome, dict(await outcome.judge(grade))

    return (*asyncio.run(both()), team)


def test_the_prompt_shows_the_signature_and_no_test(task: Task) -> None:
    assert task.prompt == "Write a function to add two numbers.\nThe function is called as add(a, b)."


def test_the_program_that_passes_most_asserts_wins_against_the_majority(config: Any, task: Task) -> None:
    asserts = "```python\nassert add(1, 2) == 3\nassert add(2, 2) == 4\nassert add(0, 7) == 8\n```"
    outcome, metrics, team = play(config, task, [WRONG, WRONG, RIGHT], [asserts, "I cannot."])
    assert outcome.answer == RIGHT
    assert [turn.reward for turn in team.coder.turns] == [0, 0, 1]
    # 1 + 2: valid, rejects both wrong programs. 2 + 2: valid, rejects none. 0 + 7 = 8: does not hold.
    assert team.tester.turns[0].reward == pytest.approx((1.0 + 0.5 - 0.5) / 3)
    assert team.tester.turns[1].reward == -1
    assert metrics["chosen_right"] == 1 and metrics["clusters_right"] == 0
    assert metrics["valid"] == pytest.approx(2 / 3) and metrics["rejects"] == pytest.approx(0.5)


def test_the_margin_of_an_assert_is_right_programs_that_pass_minus_wrong_ones(config: Any, task: Task) -> None:
    asserts = (
        "```python\nassert add(1, 2) == 3\nassert add(2, 2) == 4\nassert add(0, 7) == 8\nassert add(3, 3) == 9\n```"
    )
    _, _, team = play(config, task, [WRONG, WRONG, RIGHT], [asserts], "margin")
    # 1 + 2 separates, 2 + 2 passes everywhere, 0 + 7 = 8 nowhere; only wrong programs, which multiply, pass 3 + 3 = 9.
    assert team.tester.turns[0].reward == pytest.approx((1 + 0 + 0 - 1) / 4)


def test_a_program_that_never_ends_is_stopped_after_three_seconds(config: Any, task: Task) -> None:
    endless = "```python\ndef add(a, b):\n    while True:\n        pass\n```"
    started = time.monotonic()
    outcome, metrics, _ = play(config, task, [endless, RIGHT], ["```python\nassert add(1, 2) == 3\n```"])
    assert outcome.answer == RIGHT and metrics["coder_right"] == 0.5
    assert time.monotonic() - started < 10  # 1 s for the assert, 3 for the hidden tests, at most


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("assert add(1, 2) == 3", ["assert add(1, 2) == 3"]),
        ("```python\nassert add( 1,2 )==3  # so\nassert add(1, 2) == 3\n```", ["assert add(1, 2) == 3"]),
        ("assert add(-1, [2, (3, 'x')]) == {'a': None}", ["assert add(-1, [2, (3, 'x')]) == {'a': None}"]),
        ("assert add(1, 2) != 3", []),
        ("assert other(1) == 1", []),
        ("assert add(f(1), 2) == 3", []),
        ("assert add(1, b=2) == 3", []),
        ("assert add(1, 2) == 1 + 2", []),
        ("assert add(1, 2)", []),
        ("assert (" + "(" * 5000, []),
        ("\n".join(f"assert add(1, {n}) == {n}" for n in range(9)), [f"assert add(1, {n}) == {n}" for n in range(4)]),
    ],
)
def test_an_assert_is_a_call_with_literals_and_equality(module: Any, text: str, found: list[str]) -> None:
    assert module.asserts_in(text, "add") == found


def test_ties_go_to_the_largest_cluster_of_equal_outputs_then_to_the_earliest(module: Any) -> None:
    def fails(*got: str) -> Verdict:
        failures = tuple(Failure(number, "", "", value) for number, value in enumerate(got))
        return Verdict(0, 2, failures, frozenset(range(2)))

    pool = ["assert f(1) == 1", "assert f(2) == 2"]
    assert module.elect([fails("3", "4"), fails("5", "6"), fails("5", "6")], pool) == 1
    assert module.elect([None, fails("3", "4")], pool) == 1
    assert module.elect([fails("3", "4"), fails("5", "6")], pool) == 0


LEETCODE = {
    "problem": "Please solve the task below.\n\nReturn a minus b.\n \n"
    "Please complete the following python code precisely:\n```python\nclass Solution:\n```",
    "solutions": "class Solution:\n    def minus(self, a: int, b: int) -> int:\n        return List and a - b",
    "tests": {
        "functional": "def check(candidate):\n    assert candidate(b = 2, a = 5) == 3\n"
        "    assert candidate(1, b = 1) == 0\n    assert candidate(a = tree([1]), b = 1) == 0\n"
        "\n\ncheck(Solution().minus)"
    },
}
HUMANEVAL = {
    "task_id": "HumanEval/7",
    "entry_point": "half",
    "prompt": 'def half(x: float) -> float:\n    """Half of x.\n    >>> half(4)\n    2.0\n    """\n',
    "canonical_solution": "    return x / 2\n",
    "test": "def check(candidate):\n    assert abs(candidate(3) - 1.5) < 1e-6\n    for i in range(3):\n"
    "        assert candidate(2 * i) == i\n    assert candidate(candidate(8)) == 2\n",
}


@pytest.mark.skipif(bubblewrap.problem() is not None, reason="bubblewrap does not work here")
def test_leetcode_and_humaneval_become_rows_of_mbpp(tmp_path: Path) -> None:
    script = RESULTS / "prepare.py"
    wrong = LEETCODE | {"solutions": LEETCODE["solutions"].replace("a - b", "b - a")}  # type: ignore[attr-defined]
    on_trees = LEETCODE | {"tests": {"functional": "def check(candidate):\n    assert same(candidate(t()), 1)\n"}}
    for name, rows in {"leetcode": [wrong, LEETCODE, on_trees], "humaneval": [HUMANEVAL]}.items():
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        words = [sys.executable, script, name, tmp_path / f"{name}.jsonl", tmp_path / f"{name}_rows.jsonl"]
        ran = subprocess.run([str(word) for word in words], capture_output=True, text=True, check=True, cwd=REPOSITORY,
                             env={**os.environ, "PYTHONPATH": str(REPOSITORY)})  # fmt: skip
        assert f"1 of {len(rows)} rows" in ran.stdout
    files = [
        f"env.{split}={tmp_path / name}_rows.jsonl"
        for split, name in {"train": "leetcode", "test": "humaneval"}.items()
    ]
    env = load(RESULTS / "team.yaml", files).env.instance
    (minus,), (half,) = env.tasks("train"), env.tasks("test")
    assert minus.prompt == "Return a minus b.\nThe function is called as minus(a, b)."
    assert minus.meta["tests"]["test_list"] == ["assert minus(5, 2) == 3", "assert minus(1, 1) == 0"]
    assert half.prompt.startswith("Half of x.\n>>> half(4)") and half.meta["call"] == "half(x)"
    assert half.meta["tests"]["test_list"] == ["assert abs(half(3) - 1.5) < 1e-06"]
