"""Laws of the rewards, and of the processes that slow ones run in."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from coterie.rewards import GraderFailed, GraderTimeout, grader_pool, make_grader
from coterie.rewards.answer_extraction import after_hashes, boxed, last_number
from coterie.rewards.exact_match import exact, number
from coterie.rewards.math import math
from tests.hangs import HANG, eventually

OWN = """
from __future__ import annotations
import os, time
from dataclasses import dataclass

@dataclass
class Half:
    worth: float = 0.5

def half(answer, truth, *, scale=1.0): return Half().worth * scale
async def slow(answer, truth):
    import asyncio
    await asyncio.sleep(0.01)
    return 1
def loud(answer, truth):
    print("a print of the grader's own")
    return float(answer == truth)
def never(answer, truth):
    while True: pass
def dies(answer, truth): os._exit(3)
def raises(answer, truth): raise KeyError("the third colour")
def text(answer, truth): return "good"
def nan(answer, truth): return float("nan")
def lambda_(answer, truth): return lambda: 0
def whoami(answer, truth): return os.getpid()
def endless(answer, truth):
    open(truth, "w").write(str(os.getpid()))
    while True: pass
def children(answer, truth):
    import subprocess
    child = subprocess.Popen(["sleep", "60"])
    open(truth, "w").write(str(child.pid))
    time.sleep(60)
"""


@pytest.fixture
def own(tmp_path: Path) -> Path:
    path = tmp_path / "mine.py"
    path.write_text(OWN)
    return path


def grade(name: str, answer: Any, truth: Any, deadline: float = HANG, **options: Any) -> float:
    return asyncio.run(make_grader(name, options, deadline)(answer, truth))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("72", "72"),
        ("$1,234.50", "1234.5"),
        ("-3", "-3"),
        ("\u22123", "-3"),
        ("x = 5.", "5"),
        ("It is 5, not 6", "6"),
        ("so -$1,000 in all", "-1000"),
        ("10-3", "3"),
        ("f(2)-3", "3"),
        ("about 50%.", "50"),
        ("3/4", "0.75"),
        ("3/0", "0"),
        ("1, 2, 3", "3"),
        ("1,2345", "2345"),
        (".5 litres", "0.5"),
        ("1e-3", "0.001"),
        ("48/2 = 24 clips\n#### 24", "24"),
        ("**7**", "7"),
    ],
)
def test_the_last_number_is_read_as_people_write_it(text: str, value: str) -> None:
    assert last_number(text) == last_number(value)
    assert number(text, value) == 1.0
    assert number(text, float(value)) == 1.0


def test_a_text_without_a_number_is_wrong_and_a_reference_without_one_is_a_mistake() -> None:
    assert number("no idea", "4") == 0.0
    assert number("7", "72") == 0.0
    with pytest.raises(ValueError, match="'blue' has no number"):
        number("4", "blue")


def test_a_made_up_number_is_read_in_no_time() -> None:
    started = time.thread_time()  # not the clock's: others may use this machine too
    assert last_number("9" * 20000) is not None
    assert last_number("1e99999999999") is not None
    assert last_number("1," * 20000) is not None
    assert time.thread_time() - started < 1.0


def test_exact_ignores_spaces_around_and_capitals_on_request() -> None:
    assert exact(" Paris\n", "Paris") == 1.0
    assert exact("paris", "Paris") == 0.0
    assert exact("paris", "Paris", case=False) == 1.0
    assert exact("4", 4) == 1.0
    assert grade("exact", "paris", "Paris", case=False) == 1.0


def test_the_last_closed_box_counts_with_its_own_braces() -> None:
    assert boxed(r"\boxed{1} then \boxed{\frac{1}{\sqrt{2}}}.") == r"\frac{1}{\sqrt{2}}"
    assert boxed(r"\boxed{3}, no: \boxed{4") == "3"
    assert boxed(r"\boxed{\left\{ 1 \right.}") == r"\left\{ 1 \right."
    assert boxed(r"\boxed{\boxed{5}}") == "5"
    assert boxed("5") is None


def test_four_hashes_mark_an_answer() -> None:
    assert after_hashes("2 + 2 = 4\n#### 4\n") == "4"
    assert after_hashes("nothing") is None
    assert after_hashes("####") is None


@pytest.mark.parametrize(
    ("answer", "truth", "worth"),
    [
        (r"so \boxed{\frac{1}{2}}", "0.5", 1.0),
        (r"\boxed{0.5}", r"\frac{1}{2}", 1.0),
        (r"\boxed{2\sqrt{3}}", r"\sqrt{12}", 1.0),
        (r"\boxed{x^2+2x+1}", "(x+1)^2", 1.0),
        (r"\boxed{\{2, 1\}}", r"\{1, 2\}", 1.0),
        (r"\boxed{1,234}", 1234, 1.0),
        (r"\boxed{1} \boxed{2}", "1", 0.0),
        (r"\boxed{(1, 2)}", "(2, 1)", 0.0),
        (r"the answer is 72", "72", 1.0),
        ("72 is wrong\n#### 71", "72", 0.0),
        ("it is 1/3", r"\frac{1}{3}", 1.0),
        (r"\frac{3}{4}", r"\frac{3}{4}", 1.0),
        (r"\boxed{72}", "48 + 24 = 72\n#### 72", 1.0),
        ("", "72", 0.0),
        (r"\boxed{}", "72", 0.0),
        (None, "72", 0.0),
    ],
)
def test_math_compares_what_an_answer_means(answer: Any, truth: Any, worth: float) -> None:
    assert math(answer, truth) == worth


def test_math_refuses_an_empty_reference() -> None:
    with pytest.raises(ValueError, match="cannot be parsed"):
        math("5", "")


def test_every_math500_reference_is_right_in_its_box() -> None:
    path = Path(os.environ.get("COTERIE_DATA", "")) / "math500" / "math500.jsonl"
    if not path.is_file():
        pytest.skip("COTERIE_DATA names no folder with math500")
    answers = [json.loads(line)["answer"] for line in path.read_text().splitlines()][:100]
    wrong = [answer for answer in answers if math(rf"Hence \boxed{{1}}, no, \boxed{{{answer}}}.", answer) != 1.0]
    assert wrong == []
    mixed_up = [a for a, b in pairwise(answers) if a != b and math(rf"\boxed{{{b}}}", a) == 1.0]
    assert len(mixed_up) < 3


def test_math_runs_in_a_process_without_torch(own: Path) -> None:
    own.write_text("import sys\ndef heavy(answer, truth): return float('torch' in sys.modules)")
    fresh = grader_pool.Worker()  # not one that has been asked for something else before
    try:
        assert fresh.call("coterie.rewards.math:math", (r"\boxed{\frac{2}{4}}", "0.5"), {}, 20.0) == 1.0
        assert fresh.call(f"{own}:heavy", ("", ""), {}, 20.0) == 0.0
    finally:
        fresh.kill()


def test_a_users_function_is_called_with_its_options(own: Path) -> None:
    assert grade(f"{own}:half", "a", "b") == 0.5
    assert grade(f"{own}:half", "a", "b", scale=4.0) == 2.0
    assert grade(f"{own}:slow", "a", "b") == 1.0
    assert grade(f"{own}:loud", "a", "a") == 1.0


def test_a_worker_serves_many_calls_and_many_event_loops(own: Path) -> None:
    async def many() -> set[float]:
        ask = make_grader(f"{own}:whoami", {}, 20.0)
        return set(await asyncio.gather(*(ask("", "") for _ in range(30))))

    first, second = asyncio.run(many()), asyncio.run(many())
    assert len(first | second) <= grader_pool.WORKERS
    assert os.getpid() not in first | second


def test_a_call_that_never_returns_is_killed_and_the_next_one_is_answered(own: Path) -> None:
    assert grade(f"{own}:half", "", "") == 0.5
    with pytest.raises(GraderTimeout, match=r"never took more than 0.3 s"):
        grade(f"{own}:never", "", "", deadline=0.3)
    assert grade(f"{own}:half", "", "") == 0.5


def test_the_deadline_starts_when_a_call_does(own: Path) -> None:
    """Eight times as many calls as workers: the last ones wait in line for 1.75 s, which is no fault of theirs."""
    own.write_text("import time\ndef nap(answer, truth):\n    time.sleep(0.25)\n    return 1.0")

    async def many() -> list[float]:
        ask = make_grader(f"{own}:nap", {}, 1.75)
        return await asyncio.gather(*(ask("", "") for _ in range(8 * grader_pool.WORKERS)))

    assert asyncio.run(many()) == [1.0] * (8 * grader_pool.WORKERS)


WAITS = """
import time
def grade(answer, truth):
    while answer == "spin": pass
    time.sleep(3600 if answer == "hang" else 0)
    return 1.0
async def waits(answer, truth):
    import asyncio
    await asyncio.sleep(3600 if answer == "hang" else 0)
    return 1.0
"""


@pytest.mark.parametrize("name", ["grade", "waits"])
def test_answers_do_not_wait_for_more_calls_that_hang_than_there_are_workers(
    own: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when a server that a reward asks hangs for some answers: here the others would be asked after an hour."""
    own.write_text(WAITS)
    monkeypatch.setattr(grader_pool, "IDLE", 0.3)
    hanging = 3 * grader_pool.WORKERS

    async def many() -> list[float]:
        ask = make_grader(f"{own}:{name}", {}, 3600.0)
        hang = [asyncio.ensure_future(ask("hang", "")) for _ in range(hanging)]
        await asyncio.sleep(0.5)  # they come first
        good = await asyncio.gather(*(ask("fine", "") for _ in range(8)))
        for task in hang:
            task.cancel()
        return good

    def all_ended() -> bool:
        """A call that was still queued starts when another one is killed: kill until none is left."""
        for left in set(grader_pool._workers):
            with suppress(ProcessLookupError):
                os.killpg(left.process.pid, signal.SIGKILL)
        return (
            grader_pool._worker_slots.free._value == grader_pool.WORKERS
            and not grader_pool._worker_slots.threads._work_queue.qsize()
        )

    try:
        assert asyncio.run(many()) == [1.0] * 8
    finally:
        assert eventually(all_ended)  # or the end of the tests would wait for them


def test_a_call_that_works_keeps_its_place(own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """More processes than processors would only make all of them slower than their deadline."""
    own.write_text(WAITS)
    monkeypatch.setattr(grader_pool, "IDLE", 0.5)
    told: list[float] = []
    busy = grader_pool.Worker()
    with pytest.raises(GraderTimeout):
        busy.call(f"{own}:grade", ("spin", ""), {}, 4 * grader_pool.IDLE, lambda: told.append(1.0))
    assert not told
    idle = grader_pool.Worker()
    with pytest.raises(GraderTimeout, match=r"grade took more than 1.5 s"):
        idle.call(f"{own}:grade", ("hang", ""), {}, 3 * grader_pool.IDLE, lambda: told.append(1.0))
    assert told


def test_killing_a_call_kills_what_it_started(own: Path, tmp_path: Path) -> None:
    note = tmp_path / "pid"
    with pytest.raises(GraderTimeout):
        grade(f"{own}:children", "", str(note), deadline=2.0)
    assert eventually(lambda: not alive(int(note.read_text())))


def test_a_failure_comes_back_with_its_traceback(own: Path, tmp_path: Path) -> None:
    with pytest.raises(GraderFailed, match=r"(?s)mine.py.*KeyError: 'the third colour'"):
        grade(f"{own}:raises", "", "")
    with pytest.raises(GraderFailed, match="died with exit code 3"):
        grade(f"{own}:dies", "", "")
    with pytest.raises(GraderFailed, match=r"mine.py has no nothing"):
        grade(f"{own}:nothing", "", "")
    with pytest.raises(GraderFailed, match="FileNotFoundError"):
        grade(f"{tmp_path}/gone.py:half", "", "")


@pytest.mark.parametrize("name", ["text", "nan", "lambda_"])
def test_a_reward_that_is_no_number_is_an_error_that_names_it(own: Path, name: str) -> None:
    with pytest.raises((ValueError, GraderFailed), match=f"mine.py:{name}"):
        grade(f"{own}:{name}", "", "")


def test_an_unknown_reward_is_told_the_nearest() -> None:
    with pytest.raises(ValueError, match=r"reward nummer: .*did you mean number\?"):
        make_grader("nummer", {}, 1.0)


def test_a_script_without_a_main_guard_is_not_run_again(own: Path) -> None:
    """The trap of multiprocessing's spawn."""
    ran = subprocess.run(
        **script(own, f"print('once', asyncio.run(make_grader({f'{own}:half'!r}, {{}}, 20.0)('', '')))")
    )
    assert ran.stdout == "once 0.5\n"
    assert ran.stderr == ""


def test_no_grader_outlives_a_parent_that_was_killed(own: Path, tmp_path: Path) -> None:
    note = tmp_path / "pid"
    call = f"make_grader({f'{own}:endless'!r}, {{}}, {HANG})('', {str(note)!r})"
    # Killed as soon as the grader has said who it is, without a chance to clean up.
    kill = f"while not (os.path.exists({str(note)!r}) and open({str(note)!r}).read()): time.sleep(0.01)\n"
    kill = "def kill():\n    " + kill + "    os.kill(os.getpid(), 9)\n"
    kill = f"import os, threading, time\n{kill}threading.Thread(target=kill).start()\n"
    subprocess.run(**script(own, f"{kill}asyncio.run({call})"))
    assert eventually(lambda: not alive(int(note.read_text())))


def script(beside: Path, code: str) -> dict[str, Any]:
    """How to run a few lines as a user's script."""
    path = beside.with_name("script.py")
    path.write_text(f"import asyncio\nfrom coterie.rewards import make_grader\n{code}\n")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    return {"args": [sys.executable, path], "capture_output": True, "text": True, "timeout": 60, "env": environment}


def alive(pid: int) -> bool:
    """Whether a process still runs; a zombie does not."""
    stat = Path(f"/proc/{pid}/stat")
    return stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z"
