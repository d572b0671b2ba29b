"""Answers that are programs: their values are found in the sandbox, and a bad program is rejected with its reason."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

from coterie.data import programs, tinygsm
from coterie.data.files import read_prepared
from coterie.data.prepare import SourceRow, split_rows
from coterie.data.programs import run_programs
from coterie.data.row import Row
from coterie.data.tinygsm import TINYGSM
from coterie.envs.rows import Rows
from coterie.sandbox import bubblewrap
from tests.commands import coterie, stdout_of

pytestmark = pytest.mark.skipif(bubblewrap.problem() is not None, reason="bubblewrap does not work here")

TINY = '''def simple_math_problem() -> int:
    """
    Ann has 3 bags of {n} apples. She eats half of one bag. How many are left?
    """
    bags, apples = 3, {n}
    eaten = apples / 2
    result = bags * apples - eaten
    return result
'''
VALUES = {
    TINY.format(n=4): "10",
    TINY.format(n=5): "12.5",
    "def helper(x):\n    return x + 1\n\ndef main(times=2):\n    print('17')\n    return times * helper(0.05)": "2.1",
    "import math\nresult = math.floor(7.9)": "7",
    "from decimal import Decimal\nanswer = Decimal('0.1') + Decimal('0.2')": "0.3",
    "total = 0.1 + 0.2\nprint('so it is')\nprint(total)": "0.3",
    "result = 10 ** 20": "100000000000000000000",
    "print(10 ** 20 + 1)": "100000000000000000001",
    "result = -0.0": "0",
}
PROBLEMS = {
    "def f(:": "it raises SyntaxError",
    "result = 1 / 0": "it raises ZeroDivisionError",
    f"result = len(open({__file__!r}).read())": "it raises FileNotFoundError",
    "import socket\nsocket.create_connection(('127.0.0.1', 80), 1)": "it raises ConnectionRefusedError",
    "raise SystemExit": "it raises SystemExit",
    "import os\nos._exit(0)": "it ends the process",
    "result = [4]": "its value is of type list, not a number",
    "result = True": "its value is of type bool, not a number",
    "result = float('nan')": "its value is not finite",
    "def f(x):\n    return x": "it has no function without arguments, no `result`, and prints no number",
    "while True: pass": "it takes more than 1 s",
    "print('x' * 10 ** 6)\nresult = 2 * [0] * 10 ** 10": "it raises MemoryError",
}


def row(program: str) -> Row:
    return Row("id", "How many?", None, {"code": program})


def test_the_value_of_a_program_is_its_answer() -> None:
    found = run_programs([row(program) for program in VALUES], "code")
    assert [one.answer if isinstance(one, Row) else one for one in found] == list(VALUES.values())
    assert all(isinstance(one, Row) and one.meta["code"] in VALUES for one in found)


def test_a_program_without_a_value_is_rejected_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs, "LIMITS", programs.Limits(seconds=1.0, memory=512 << 20))
    monkeypatch.setitem(programs.ENDINGS, "timeout", "it takes more than 1 s")
    found = run_programs([row(program) for program in PROBLEMS], "code")
    assert found == [f"code: {problem}" for problem in PROBLEMS.values()]


def test_rows_with_programs_become_tasks_and_the_reasons_are_counted(tmp_path: Path) -> None:
    good = [{"question": f"Question {n}?", "solution": TINY.format(n=n)} for n in range(12)]
    bad = [{"question": f"Bad {n}?", "solution": "result = 1 / 0"} for n in range(3)] + [{"question": "No program?"}]
    (tmp_path / "mine.jsonl").write_text("".join(json.dumps(one) + "\n" for one in [*bad, *good]))
    words = ["data", "prepare", "tinygsm", "--source", tmp_path / "mine.jsonl", "--code", "solution"]
    out = stdout_of(*words, "--out", tmp_path / "out")
    assert "3     solution: it raises ZeroDivisionError" in out and "1     no field solution" in out
    rejected = [json.loads(line) for line in (tmp_path / "out" / "rejected.jsonl").read_text().splitlines()]
    assert Counter(one["reason"] for one in rejected)["solution: it raises ZeroDivisionError"] == 3
    assert {one["raw"]["question"] for one in rejected} == {one["question"] for one in bad}
    rows = [one for split in ("train", "test") for one in read_prepared(tmp_path / "out" / f"{split}.parquet")]
    assert {one.question: one.answer for one in rows} == {f"Question {n}?": f"{2.5 * n:g}" for n in range(12)}
    tasks = Rows(tmp_path / "out" / "train.parquet").tasks("train")
    assert {task.prompt: task.answer for task in tasks}.items() <= {one.question: one.answer for one in rows}.items()


def test_a_limit_counts_rows_with_a_value_and_runs_few_more(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[int] = []

    def counted(rows: Sequence[Row], column: str) -> list[Row | str]:
        """Every second program is bad."""
        ran.append(len(rows))
        return ["bad" if one.id.endswith(("0", "2", "4", "6", "8")) else one for one in rows]

    monkeypatch.setattr(tinygsm, "run_programs", counted)
    raw = [{"question": f"Question {n}?", "code": "result = 1"} for n in range(5000)]
    found = split_rows(
        tinygsm.program_source("code"), (SourceRow("a.jsonl", n, one, None) for n, one in enumerate(raw)), limit=20
    )
    assert {split: len(rows) for split, rows in found.splits.items()} == {"train": 20, "test": 20}
    assert sum(ran) <= 200 and found.reasons["bad"] >= 20


def test_a_question_whose_first_program_is_bad_is_kept_with_a_good_one() -> None:
    raw = [{"question": "Q?", "code": code} for code in ("result = 1 / 0", "result = 2", "result = 3")]
    found = split_rows(TINYGSM, [SourceRow("a.jsonl", n, one, None) for n, one in enumerate(raw)])
    assert [one.answer for rows in found.splits.values() for one in rows] == ["2"]
    assert found.reasons == {"code: it raises ZeroDivisionError": 1, "the same question as an earlier row": 1}


def test_the_column_of_programs_is_for_tinygsm_alone(tmp_path: Path) -> None:
    result = coterie("data", "prepare", "gsm8k", "--code", "x", "--out", tmp_path / "o")
    assert result.exit_code == 2 and "--code x: has no effect on gsm8k; tinygsm reads programs" in result.stderr
