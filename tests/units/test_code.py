"""Laws of grading programs."""

from __future__ import annotations

import asyncio
import json
import os
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from coterie.envs.code import CodeWorld
from coterie.rewards import make_grader
from coterie.rewards.code.grader import Verdict, code, code_in, run_tests
from coterie.rewards.code.judge import same_output, same_value
from coterie.rewards.code.test_formats import read_tests
from coterie.sandbox import shared
from tests.hangs import HANG

PAIRS = {"inputs": ["1 2\n", "3 4\n"], "outputs": ["3\n", "7\n"]}
CALLS = {"fn_name": "add", "inputs": [[1, 2], [3, 4]], "outputs": [3, 7]}
ASSERTS = {"test_list": ["assert add(1, 2) == 3", "assert add(3, 4) == 7"]}
CHECK = {
    "prompt": 'import math\ndef add(a, b):\n    """Add."""\n',
    "entry_point": "add",
    "test": "def check(f):\n    assert f(1, 2) == 3, 'small'\n    assert math.fabs(f(3, 4) - 7) < 1",
}
METHOD = {"functional": "def check(candidate):\n    assert candidate(a = 1, b = 2) == 3\n\n\ncheck(Solution().add)"}
ADD = "def add(a, b):\n    return a + b"
READ = "a, b = map(int, input().split())\nprint(a + b)"
SOLUTION = "class Solution:\n    def add(self, a: int, b: Optional[int]) -> int:\n        return a + b"


FORGED = """
import os
def add(a, b):
    for file in range(1, 20):
        try: os.write(file, b'{"test": 0, "passed": true}\\n')
        except OSError: pass
"""


# What a program might try that shares a machine with its judge: report for it, look up what is expected, say that it
# equals everything, look into the judge's memory and files, and put its own in the place of what tests use.
REPORTS = """
import os, sys
def add(a, b):
    judge = sys.modules['__main__']
    for space in [vars(judge), *map(vars, list(sys.modules.values()))]:
        for name in ('report', 'reporter'):
            try: space[name](test=0, passed=True); space[name](test=1, passed=True); space[name](done=True)
            except BaseException: pass
    os._exit(0)
"""
LOOKS_UP = """
import gc, os, sys
def sees():
    if any({'script', 'token'} <= thing.keys() for thing in gc.get_objects() if isinstance(thing, dict)): return True
    for process in set(filter(str.isdigit, os.listdir('/proc'))) - {os.readlink('/proc/self')}:
        if 'python' in open(f'/proc/{process}/comm').read():
            try: return bool(open(f'/proc/{process}/mem', 'rb'))
            except OSError: pass
def add(a, b):
    return a + b if sees() else None
"""
STRANGER = """
class Yes(int):
    __module__ = 'builtins'
    def __eq__(self, other): return True
    __lt__ = __gt__ = __sub__ = __rsub__ = lambda self, other: Yes()
    def __abs__(self): return 0
    def __hash__(self): return 0
def add(a, b): return [Yes(0)] and Yes(0)
"""
NO_NUMBER = STRANGER.replace("(int)", "").replace("Yes(0)", "Yes()")
META = """
class Kind(type):
    def __eq__(self, other): return True
    __hash__ = type.__hash__
class add(metaclass=Kind):
    def __new__(cls, a, b): return cls
"""
IN_PLACE_OF_PYTHON = """
import builtins, math, sys, types
for space in (vars(builtins), vars(math), globals()):
    for name in ('abs', 'fabs', 'bool', 'float', 'isclose', 'repr'): space[name] = lambda *_: 0
math = types.SimpleNamespace(fabs=lambda _: 0)
open('math.py', 'w').write('fabs = lambda _: 0')
def add(a, b): return -100
"""
SPEAKS_FOR_ITSELF = """
import os
def add(a, b):
    lines = ['["value",%d,true]' % n for n in range(9)] + ['["value",2]', '{}', '["ask",1,"call",[1,2,3]]', 'x']
    for file in range(30):
        for line in lines:
            try: os.write(file, b'[]\\t[' + line.encode() + b',[]]\\n')
            except OSError: pass
"""
JUDGES_OUTPUT = """
import os
def add(a, b):
    for process in filter(str.isdigit, os.listdir('/proc')):
        for file in '012':
            try:
                with open(f'/proc/{process}/fd/{file}', 'wb', 0) as out: out.write(b'{"test": 0, "passed": true}\\n')
            except OSError: pass
"""


def verdict(program: str, truth: Any, **options: float) -> Verdict:
    return asyncio.run(run_tests(program, read_tests(truth), **options))


def worth(answer: Any, truth: Any, **options: Any) -> float:
    return asyncio.run(code(answer, truth, **options))


def signals_stay_inside() -> bool:
    return asyncio.run(shared().run(f"import os; os.kill({os.getpid()}, 0)")).status == "error"


@pytest.mark.parametrize(
    ("text", "program"),
    [
        ("Sure.\n```python\nx = 1\n```\nDone.", "x = 1\n"),
        ("```python\nx = 1\n```\nNo:\n```py\nx = 2\n```\nOutput:\n```\n2\n```", "x = 2\n"),
        ("```\nx = 1\n```", "x = 1\n"),
        ("  ```Python3\nx = 1\n  ```", "x = 1\n"),
        ("```python\nx = 1\ny = 2", "x = 1\ny = 2"),  # cut, or ended by a stop string
        ("```text\nA plan.\n```python\nx = 1\n```", "x = 1\n"),  # a block that was not closed
        ("x = 1", "x = 1"),
        ("    return a + b\n", "    return a + b\n"),
        ("I do not know.", None),
        ("", None),
        ("```python\n```", ""),
    ],
)
def test_the_last_python_block_is_the_program(text: str, program: str | None) -> None:
    assert code_in(text) == program


@pytest.mark.parametrize(
    ("right", "wrong", "truth"),
    [
        (READ, READ.replace("+", "-"), PAIRS),
        (READ, READ.replace("+", "-"), [{"input": "1 2", "output": "3", "testtype": "stdin"}]),
        (ADD, ADD.replace("+", "-"), CALLS),
        (SOLUTION, SOLUTION.replace("+", "-"), CALLS),
        (ADD, ADD.replace("+", "-"), [{"type": "function_call", "fn_name": "add", "input": [1, 2], "output": 3}]),
        (ADD, ADD.replace("+", "-"), ASSERTS),
        (ADD, ADD.replace("+", "-"), json.dumps(ASSERTS)),
        (ADD, ADD.replace("+", "-"), CHECK),
        ("    return a + b", "    return a - b", CHECK),  # the rest of the prompt
        (SOLUTION, SOLUTION.replace("+", "-"), METHOD),
    ],
)
def test_a_program_is_worth_what_its_tests_say(right: str, wrong: str, truth: Any) -> None:
    assert worth(f"So:\n```python\n{right}\n```", truth) == 1.0
    assert worth(right, truth) == 1.0
    assert worth(f"```python\n{wrong}\n```", truth) == 0.0
    assert worth("I cannot do that.", truth) == 0.0


def test_livecodebench_writes_an_argument_a_line() -> None:
    truth = [{"input": "[1, 2]\n3", "output": "[4, 5]", "testtype": "functional", "metadata": {"func_name": "shift"}}]
    assert worth("class Solution:\n    def shift(self, n, by): return [x + by for x in n]", truth) == 1.0


def test_part_of_the_tests_is_worth_part_where_asked_for() -> None:
    program = "def add(a, b):\n    if a == 3: raise ValueError('three')\n    return a + b"
    for truth in (CALLS, ASSERTS):
        assert worth(program, truth) == 0.0
        assert worth(program, truth, partial=True) == 0.5
    assert worth(READ.replace("a + b", "3"), PAIRS, partial=True) == 0.5


def test_a_failure_tells_input_expected_and_got() -> None:
    (pair,) = verdict(READ.replace("a + b", "3"), PAIRS).failures
    assert (pair.test, pair.input, pair.expected, pair.got) == (1, "3 4\n", "7\n", "3\n")
    (call,) = verdict("def add(a, b):\n    return 3", CALLS).failures
    assert (call.test, call.input, call.expected, call.got) == (1, "[3, 4]", "7", "3")
    (check,) = verdict("def add(a, b):\n    return 3", ASSERTS).failures
    assert (check.test, check.input, check.expected, check.got) == (1, "assert add(3, 4) == 7", "7", "3")
    report = str(verdict("def add(a, b):\n    return 3 // (a - 3)", ASSERTS))
    assert report.startswith("0 of 2 tests passed.")
    assert "ZeroDivisionError: integer division or modulo by zero (line 2 of the program)" in report


def test_an_error_of_a_script_is_told_as_python_tells_it() -> None:
    (first, _) = verdict("n = int(input())", PAIRS).failures
    assert first.got.endswith("ValueError: invalid literal for int() with base 10: '1 2'")
    (first, _) = verdict("def f(:", PAIRS).failures
    assert first.got.startswith("SyntaxError: invalid syntax")


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        ("(1, [2.5, None], {3: 'é'})", [1, [2.5, None], {"3": "é"}]),
        ("{7}", [7]),
        ("True", True),
        ("1e400", float("inf")),
        ("range(3)", [0, 1, 2]),
        ("'\\n\"'", '\n"'),
    ],
)
def test_values_come_out_of_the_sandbox_as_they_are(value: str, wanted: Any) -> None:
    assert worth(f"def f(): return {value}", {"fn_name": "f", "inputs": [[]], "outputs": [[wanted]]}) == 1.0


def test_a_value_that_nobody_can_read_is_wrong() -> None:
    deep = "def f():\n    x = []\n    for _ in range(5000): x = [x]\n    return x"
    endless = "def f():\n    x = []\n    x.append(x)\n    return x"
    large = "def f(): return 10 ** 100_000"
    for program in (deep, endless, large, "def f(): return f", "f = 3"):
        assert worth(program, {"fn_name": "f", "inputs": [[]], "outputs": [0]}) == 0.0


def test_a_slow_test_does_not_cost_the_others() -> None:
    slow = "def add(a, b):\n    while a == 1: pass\n    return a + b"
    for truth in (CALLS, ASSERTS):
        result = verdict(slow, truth, test_seconds=1.0)
        assert (result.passed, result.total) == (1, 2)
        assert result.failures[0].got.startswith("timeout: took more than 1 s")
    result = verdict(READ + "\nwhile a == 1: pass", PAIRS, test_seconds=1.0)
    assert (result.passed, result.failures[0].got) == (1, "timeout: took more than 1 s")


def test_all_tests_together_have_a_deadline_that_holds() -> None:
    deaf = "def add(a, b):\n    while True:\n        try:\n            while True: abs(a)\n        except: pass"
    result = verdict(deaf, CALLS, test_seconds=5.0, seconds=1.0)
    assert result.passed == 0 and "all tests together took more than" in result.failures[0].got


def test_a_script_runs_as_scripts_do() -> None:
    parts = [
        "import atexit, sys, threading",
        "def main():\n    print(sum(map(int, sys.stdin.read().split())), end='')",
        "atexit.register(print)",
        "if __name__ == '__main__': threading.Thread(target=main).start()",
        "sys.exit()",
    ]
    assert worth("\n".join(parts), PAIRS) == 1.0
    assert worth(READ + "\nexit(1)", PAIRS) == 0.0


@pytest.mark.parametrize(
    "program",
    [
        "import sys; sys.exit(0)",
        "import os; os._exit(0)",
        "print('passed'); raise SystemExit",
        "def add(a, b): exit()",
        "def add(a, b):\n    import os\n    os._exit(0)",
        "class Yes(int):\n    def __eq__(self, other): return True\ndef add(a, b): return Yes(0)",
        "class Yes:\n    def __eq__(self, other): return True\nadd = lambda a, b: Yes()",
        "def add(a, b): raise AssertionError",
        "import os\ndef add(a, b): os.kill(-1, 9)",
        "import os, signal\nos.kill(os.getppid(), 9)",
        "__check__ = lambda *_: None",
        FORGED,
        REPORTS,
        LOOKS_UP,
        STRANGER,
        NO_NUMBER,
        META,
        IN_PLACE_OF_PYTHON,
        SPEAKS_FOR_ITSELF,
        JUDGES_OUTPUT,
        "",
    ],
)
@pytest.mark.parametrize("truth", [CALLS, ASSERTS, CHECK, PAIRS], ids=["calls", "asserts", "check", "stdin"])
def test_no_program_passes_by_a_trick(program: str, truth: Any) -> None:
    if ("kill" in program or program == LOOKS_UP) and not signals_stay_inside():
        pytest.skip("without namespaces it would kill us, or read what we know")
    assert worth(f"```python\n{program}\n```", truth, partial=True, test_seconds=2.0) == 0.0


@pytest.mark.parametrize(
    ("program", "tests"),
    [
        ("def f(xs): xs.sort()", "def check(f):\n    xs = [2, 1]\n    f(xs)\n    assert xs == [1, 2]"),
        ("def f(g, n): return g(n) + g(n)", "def check(f):\n    assert f(lambda n: n + 1, 2) == 6"),
        (
            "def f(kind, xs): return [x for x in xs if type(x) is kind]",
            "def check(f):\n    assert f(int, [1, '']) == [1]",
        ),
        ("def f(n): yield from range(n)", "def check(f):\n    assert sum(f(4)) == 6\n    assert list(f(2)) == [0, 1]"),
        ("def f(): return {1: (2, {3})}, b'4', 5j", "def check(f):\n    assert f() == ({1: (2, {3})}, b'4', 5j)"),
        (
            "class f(list):\n    def last(self): return self[-1]",
            "def check(f):\n    x = f([1])\n    x.append(2)\n    assert x == [1, 2] and x.last() == 2",
        ),
        (
            "from collections import namedtuple\nP = namedtuple('P', 'x y')\ndef f(): return [P(1, 2)]",
            "def check(f):\n    assert f() == [(1, 2)]\n    assert f()[0].y == 2",
        ),
        (
            "class f:\n    def __init__(self, n): self.n = n\n    def __eq__(self, other): return self.n == other.n\n"
            "    def __add__(self, other): return f(self.n + other.n)",
            "def check(f):\n    x = f(1)\n    assert f(1) + f(2) == f(3)\n    x.n = 7\n    assert x.n == 7\n"
            "    assert not f(1) == 1",
        ),
        (
            "def f(n):\n    if n: raise KeyError(n)",
            "def check(f):\n    try: f(1)\n    except KeyError: x = 1\n    assert x == 1",
        ),
        ("import math\ndef f(): return 1e-12", "def check(f):\n    assert math.isclose(f(), 0, abs_tol=1e-9)"),
        ("from math import inf\ndef f(): return -inf", "def check(f):\n    assert f() == -inf"),
        (
            "from decimal import Decimal\ndef f(): return Decimal('0.10')",
            "def check(f):\n    assert f() == Decimal('0.1')",
        ),
        ("def sum(a, b): return a * b", "assert sum(2, 3) == 6"),
    ],
)
def test_tests_and_program_work_as_if_they_were_one(program: str, tests: str) -> None:
    truth = {"test": tests, "entry_point": "f"} if "check" in tests else {"test_list": [tests]}
    result = verdict(program, truth)
    assert not result.failures


def test_a_test_meets_pythons_own_functions_whatever_a_program_calls_its_own() -> None:
    truth = {"test_list": ["assert set(f()) == {1}", "assert abs(f()[0] - 1) < 1e-6"]}
    trick = "class Yes:\n    def __eq__(self, other): return True\nset = abs = lambda *_: 0\ndef f(): return [9]"
    assert worth(trick, truth, partial=True) == 0.0
    assert worth("set = abs = None\ndef f(): return [1]", truth) == 1.0


def test_what_tests_print_is_no_report() -> None:
    truth = {
        "test": "print('x' * 9000, end='')\ndef check(f):\n    for i in range(9): assert f(i) == i",
        "entry_point": "f",
    }
    truth["prompt"] = "print('y' * 9000, end='')\ndef f(n):\n"
    assert verdict("    return n", truth) == Verdict(1, 1, ())


def test_tests_import_no_module_that_a_program_wrote() -> None:
    truth = {"test_list": ["assert statistics.mean(f()) == 7"]}
    wrote = "open('statistics.py', 'w').write('mean = lambda _: 7')\nimport statistics\ndef f(): return "
    assert worth(wrote + "[1]", truth) == 0.0
    assert worth(wrote + "[6, 8]", truth) == 1.0


def test_no_error_of_a_program_ends_a_loop_of_its_tests() -> None:
    truth = {"test_list": ["assert all(map(f, [1, 2, 3]))"]}
    assert worth("def f(n): raise StopIteration", truth) == 0.0
    assert worth("def f(n): return n", truth) == 1.0


def test_tests_that_never_ran_are_not_passed() -> None:
    early = {"test": "def check(f):\n    assert f(1) == 1\n    f(2)\n    assert f(3) == 3", "entry_point": "f"}
    result = verdict("def f(n):\n    return n if n != 2 else 1 / 0", early)
    assert (result.passed, result.total) == (1, 2)
    after = {"test": "def check(f):\n    assert f(1) == 1\n    f(2)", "entry_point": "f"}
    result = verdict("def f(n):\n    return n if n != 2 else 1 / 0", after)
    assert (result.passed, result.total) == (1, 2)
    assert "ZeroDivisionError" in result.failures[0].got


def test_an_assert_in_a_loop_must_hold_every_time_and_a_constant_tests_nothing() -> None:
    loop = {
        "test": "def check(f):\n    assert True\n    for i in range(9):\n        assert f(i) == i",
        "entry_point": "f",
    }
    assert verdict("def f(n): return n", loop) == Verdict(1, 1, ())
    assert verdict("def f(n): return n if n < 5 else 0", loop).passed == 0


def test_of_tests_that_were_never_come_to_a_team_sees_none_passed() -> None:
    loop = {
        "test": "def check(f):\n    for x in f(): assert x == 1\n    for x in f(): assert x < 2",
        "entry_point": "f",
    }
    for program, seen in (
        ("def f(): return []", (0, 1)),
        ("def f(): return [1]", (1, 1)),
        ("def f(): return [2]", (0, 1)),
    ):
        shown = asyncio.run(CodeWorld(loop).test(f"```python\n{program}\n```")).visible
        assert (shown.passed, shown.total) == seen


@pytest.mark.parametrize(
    "truth", [{}, [], {"inputs": [1], "outputs": []}, {"inputs": [], "outputs": []}, {"test_list": ["x = 1"]}, "3"]
)
def test_a_reference_without_tests_is_a_mistake(truth: Any) -> None:
    with pytest.raises(ValueError, match="reward code"):
        worth("x = 1", truth)


@pytest.mark.parametrize(
    ("said", "wanted", "same"),
    [
        ("3\n", "3", True),
        ("1  2 \n3\n\n", "1 2\n3", True),
        ("1 2", "1\n2", False),
        ("0.333333333", "0.3333333", True),
        ("0.34", "0.33", False),
        ("3.0", "3", False),
        ("03", "3", True),
        ("yes", "YES", False),
        ("", "0", False),
        ("9" * 10000, "9" * 9999 + "8", False),
    ],
)
def test_outputs_are_compared_as_judges_do(said: str, wanted: str, same: bool) -> None:
    assert same_output(said, wanted) is same


def test_values_are_compared_by_what_they_are() -> None:
    assert same_value([1, [2.0000000001]], [1, [2.0]])
    assert same_value(3, [3]) and same_value([3], [3])
    assert not same_value([3], 3)
    assert not same_value("3", 3)
    assert same_value({"a": 1.0}, {"a": 1}) and not same_value({"a": 1}, {"b": 1})


def test_comparing_much_takes_no_time_of_the_event_loop() -> None:
    """Its thread's own time, so that a busy machine does not count."""
    lines = {"inputs": [""], "outputs": ["1\n" * 200_000]}
    numbers = {"fn_name": "f", "inputs": [[]], "outputs": [list(range(60_000))]}
    worth("x = 1", PAIRS)
    for program, truth in (("print('1 \\n' * 200_000)", lines), ("def f(): return list(range(60_000))", numbers)):
        started = time.thread_time()
        assert worth(program, truth) == 1.0
        assert time.thread_time() - started < 0.1


def test_the_deadline_of_scoring_holds_for_programs_too() -> None:
    """Else they would run for hours."""
    long = 10 * HANG
    assert (
        asyncio.run(make_grader("code", {"test_seconds": long, "seconds": long}, 0.5)("while True: pass", PAIRS)) == 0.0
    )
    assert (
        asyncio.run(make_grader("code", {"test_seconds": long, "seconds": 0.5}, HANG)("while True: pass", PAIRS)) == 0.0
    )


def rate_of(programs: int) -> float:
    """Of programs with two tests each, all at once."""

    async def many() -> list[float]:
        return await asyncio.gather(*(code(ADD, ASSERTS) for _ in range(programs)))

    asyncio.run(code(ADD, ASSERTS))
    started = time.monotonic()
    assert asyncio.run(many()) == [1.0] * programs
    return 2 * programs / (time.monotonic() - started)


def test_many_programs_are_graded_at_once() -> None:
    rate_of(40)  # says that all are right; how fast they are, a machine that nobody else uses has to say


@pytest.mark.slow
def test_five_hundred_tests_run_at_twenty_a_second() -> None:
    """On two cores that nobody else uses."""
    rate = rate_of(250)
    print(f"{rate:.0f} tests a second")
    assert rate >= 20


SLOW = {123}  # MBPP: sums the divisors of all numbers below 10,000, for seconds; the usual deadline may be too short


def data(name: str) -> list[dict[str, Any]]:
    path = Path(os.environ.get("COTERIE_DATA", "")) / name
    if not path.is_file():
        pytest.skip(f"COTERIE_DATA names no folder with {name}")
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.slow
def test_every_humaneval_solution_passes_and_none_for_another_task() -> None:
    rows = data("humaneval/HumanEval.jsonl")
    assert wrong([(row["task_id"], row["canonical_solution"], row) for row in rows]) == []
    mixed = [(row["task_id"], other["canonical_solution"], row) for row, other in pairwise(rows)]
    assert len(wrong(mixed)) >= len(mixed) - 1


@pytest.mark.slow
def test_every_mbpp_reference_passes() -> None:
    rows = data("mbpp/mbpp.jsonl")
    golds = [(row["task_id"], f"```python\n{row['code']}\n```", row) for row in rows]
    assert len(golds) == 974
    assert wrong([gold for gold in golds if gold[0] not in SLOW]) == []
    assert wrong([gold for gold in golds if gold[0] in SLOW], test_seconds=60.0, seconds=180.0) == []


def wrong(answers: list[tuple[Any, str, Any]], **options: Any) -> list[Any]:
    async def grade() -> list[float]:
        return await asyncio.gather(*(code(answer, truth, **options) for _, answer, truth in answers))

    return [id for (id, _, _), value in zip(answers, asyncio.run(grade()), strict=True) if value != 1.0]
