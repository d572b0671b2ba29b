"""Laws of builtin graders: each answer in a process of its own, under limits, and none waits for one that hangs."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from coterie.rewards import GraderFailed, GraderTimeout, grader_pool, make_grader
from coterie.rewards.grader_pool import WORKERS, OverLimits, call_forked
from coterie.rewards.math import is_within_limits, math
from tests.hangs import HANG, eventually
from tests.units.test_rewards import alive

OWN = """
import os, signal, sys, time
seen = []
def remembers(answer):
    seen.append(answer)
    return len(seen)
def whoami(): return os.getpid()
def never():
    while True: pass
def notes(path):
    open(path, "w").write(str(os.getpid()))
    never()
def sleeps(seconds): time.sleep(seconds)
def fills():
    return len(bytearray(8 << 30))
def digs(): return digs()
def dies(): os.kill(os.getpid(), signal.SIGKILL)
def raises(): raise KeyError("the third colour")
def torch(): return "torch" in sys.modules
"""


@pytest.fixture
def own(tmp_path: Path) -> Path:
    path = tmp_path / "mine.py"
    path.write_text(OWN)
    return path


def called(name: str, *arguments: Any, deadline: float = HANG, cpu_seconds: int | None = None) -> Any:
    return asyncio.run(call_forked(name, arguments, {}, deadline, cpu_seconds))


def test_no_two_answers_share_a_process(own: Path) -> None:
    assert [called(f"{own}:remembers", answer) for answer in "abc"] == [1, 1, 1]
    assert len({called(f"{own}:whoami") for _ in range(3)} | {os.getpid()}) == 4
    assert called(f"{own}:torch") is False


def test_an_answer_over_its_limits_of_memory_recursion_or_processor_time_is_told_as_such(own: Path) -> None:
    for name in ("fills", "digs"):
        with pytest.raises(OverLimits):
            called(f"{own}:{name}")
    with pytest.raises(OverLimits):
        called(f"{own}:never", cpu_seconds=1)


def test_hanging_dying_and_raising_are_told_apart(own: Path) -> None:
    with pytest.raises(GraderTimeout, match=r"sleeps took more than 0.3 s"):
        called(f"{own}:sleeps", 60, deadline=0.3)
    with pytest.raises(GraderFailed, match="failed in its process: 9"):
        called(f"{own}:dies")
    with pytest.raises(GraderFailed, match=r"(?s)mine.py.*KeyError: 'the third colour'"):
        called(f"{own}:raises")
    with pytest.raises(GraderFailed, match="has no nothing"):
        called(f"{own}:nothing")
    assert called(f"{own}:remembers", "after all of that") == 1


def test_answers_do_not_wait_for_those_that_hang(own: Path) -> None:
    """Three times as many hang as there are places; all good ones are answered before one of those is killed."""

    async def both() -> tuple[list[Any], list[bool]]:
        hanging = [asyncio.ensure_future(call_forked(f"{own}:never", (), {}, 30.0, 1)) for _ in range(3 * WORKERS)]
        await asyncio.sleep(0.1)
        good = await asyncio.gather(*(call_forked(f"{own}:remembers", ("a",), {}, HANG) for _ in range(4)))
        ended = [each.done() for each in hanging]
        await asyncio.gather(*hanging, return_exceptions=True)
        return good, ended

    assert called(f"{own}:remembers", "loaded") == 1
    assert asyncio.run(both()) == ([1] * 4, [False] * 3 * WORKERS)
    assert grader_pool._fork_slots.hanging == 0


def test_no_answer_outlives_a_parent_that_was_killed(own: Path, tmp_path: Path) -> None:
    note = tmp_path / "pid"
    code = f"""
import asyncio, os, threading, time
from coterie.rewards.grader_pool import call_forked
def kill():
    while not (os.path.exists({str(note)!r}) and open({str(note)!r}).read()):
        time.sleep(0.01)
    os.kill(os.getpid(), 9)
threading.Thread(target=kill).start()
asyncio.run(call_forked({f"{own}:notes"!r}, ({str(note)!r},), {{}}, {HANG}))
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True)
    assert eventually(lambda: not alive(int(note.read_text())))


# --- limits of mathematics ---

NESTED = "\\frac{1}{" * 60


@pytest.mark.parametrize(
    "bomb",
    [
        NESTED + "5" + "}" * 60,
        "(" * 20 + "5" + ")" * 20,
        "{" * 20 + "5" + "}" * 20,
        "\\{" * 20 + "5" + "\\}" * 20,
        "\\left[" * 20 + "5",
        "9^{9^{9^{9}}}",
        "9^9^9^9",
        "9**9**9",
        "2^{1000000}",
        "2^{-(1000000)}",
        "10000000!",
        "{10000000}!",
        "100!!",
        "9" * 1001,
        "x+" * 501,
    ],
)
def test_an_expression_over_the_limits_is_wrong_before_it_is_parsed(bomb: str, monkeypatch: pytest.MonkeyPatch) -> None:
    parsed: list[str] = []
    monkeypatch.setattr("coterie.rewards.math._parse", lambda text: [parsed.append(text)])
    assert not is_within_limits(bomb)
    assert math(f"\\boxed{{{bomb}}}", "5") == 0.0
    assert parsed == ["5"]


@pytest.mark.parametrize(
    "expression",
    [
        "(1+x^2)^3", "e^{x^2}", "2^{4950}", "2^{2008} - 2", "9999!", "x!", "{" * 8 + "5" + "}" * 8,
        r"\left( -\frac{9}{2} , -2 \right) \cup \left( \frac{1 - \sqrt{5}}{2}, \frac{1 + \sqrt{5}}{2} \right)",
        "12345678901234567890", "2^{2^{n}}", r"\frac{1}{1+\frac{1}{1+\frac{1}{2}}}", "(-1)^{n+1}", "10^{12345}",
    ],
)  # fmt: skip
def test_what_people_answer_is_within_the_limits(expression: str) -> None:
    assert is_within_limits(expression)


def test_a_reference_beyond_the_limits_is_still_right() -> None:
    assert math(r"\boxed{2^{1000000}}", r"2^{1000000}") == 1.0


@pytest.mark.parametrize(
    ("answer", "worth"),
    [(r"\boxed{72}", 1.0), ("72", 0.0), ("<answer>72</answer>", 0.0), ("#### 72", 0.0), (r"\boxed{71} 72", 0.0)],
)
def test_with_strict_only_a_box_counts(answer: str, worth: float) -> None:
    assert math(answer, "72", strict=True) == worth
    assert asyncio.run(make_grader("math", {"strict": True}, 60.0)(answer, "72")) == worth


def test_64_answers_of_60_nested_fractions_cost_at_most_two_deadlines() -> None:
    deadline = HANG / 2  # too long for a busy machine to matter
    ask, answers = make_grader("math", {"seconds": deadline}, HANG), [f"\\boxed{{{NESTED}5{'}' * 60}}}", NESTED] * 32

    async def all_of_them() -> list[float]:
        return await asyncio.gather(*(ask(answer, "5") for answer in answers))

    assert asyncio.run(ask("5", "6")) == 0.0  # the parser is loaded
    started = time.monotonic()
    assert asyncio.run(all_of_them()) == [0.0] * 64
    assert time.monotonic() - started < 2 * deadline


def test_a_math_answer_has_five_seconds_and_two_of_processor_time(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[tuple[float, int | None]] = []

    async def records(name: str, arguments: Any, options: Any, deadline: float, cpu_seconds: int | None) -> float:
        given.append((deadline, cpu_seconds))
        return 0.0

    monkeypatch.setattr("coterie.rewards.grader.call_forked", records)
    for options, deadline in (({}, 30.0), ({}, 3.0), ({"seconds": 9.0}, 30.0)):
        asyncio.run(make_grader("math", options, deadline)("5", "6"))
    asyncio.run(make_grader("qa", {}, 30.0)("5", "6"))
    assert given == [(5.0, 2), (3.0, 2), (9.0, 2), (30.0, None)]


def test_an_expression_that_keeps_sympy_busy_is_wrong_or_late_but_never_right() -> None:
    """Over its processor time where the machine is free, over its deadline where it is busy."""
    try:
        worth = asyncio.run(make_grader("math", {"seconds": 4.0}, 30.0)(r"\boxed{(x+y+z+w)^{999}}", "5"))
    except GraderTimeout:
        worth = 0.0
    assert worth == 0.0
