"""Right when the program passes its tests."""

from __future__ import annotations

import ast
import io
import json
import marshal
import re
import secrets
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import CodeType
from typing import Any

from coterie.rewards.code.tests import Tests, read_tests
from coterie.sandbox import Limits, Ran, shared

# What runs in the sandbox, in the order in which it is imported there, where nothing of ours is installed.
INSIDE = ("same", "remote_object", "codec", "rpc", "program_process", "judge")
HARNESS = """
import marshal, os, sys
def take(count):
    parts = b""
    while len(parts) < count:
        parts += os.read(0, count - len(parts))
    return parts
known = marshal.loads(take(int.from_bytes(take(8), "big")))
for name, code in known["modules"]:
    sys.modules[name] = type(sys)(name)
    exec(code, vars(sys.modules[name]))
sys.modules[name].main(known)
"""
OUTPUT = 32 << 20  # bytes that all tests of a program may print together
SHOWN = 2000  # letters of an input or an output in a report
LANGUAGE = re.compile(r"[ \t]*+```[ \t]*+(?P<language>[\w+#.-]*+)")
PYTHON = ("python", "python3", "py")
LONGEST = 20_000  # letters of a program without a fence; parsing takes a while, and all else waits for it


@dataclass(frozen=True)
class Failure:
    """A test that a program did not pass."""

    test: int
    input: str
    expected: str
    got: str  # or what went wrong


@dataclass(frozen=True)
class Verdict:
    """What came of a program's tests."""

    passed: int
    total: int
    failures: tuple[Failure, ...]
    reached: frozenset[int] = field(default=frozenset(), compare=False)  # tests with a result

    @property
    def fraction(self) -> float:
        return self.passed / self.total

    def first(self, count: int) -> Verdict:
        """Of the first so many tests alone."""
        failures = tuple(failure for failure in self.failures if failure.test < count)
        reached = frozenset(test for test in self.reached if test < count)
        return Verdict(len(reached) - len(failures), max(len(reached), 1), failures, reached)

    def __str__(self) -> str:
        """A report for whoever repairs the program."""
        said = [f"{self.passed} of {self.total} tests passed."]
        for failure in self.failures:
            said.append(f"Input:\n{failure.input}\nExpected:\n{failure.expected}\nGot:\n{failure.got}")
        return "\n\n".join(said)


async def code(
    answer: Any, truth: Any, *, partial: bool = False, test_seconds: float = 4.0, seconds: float = 20.0
) -> float:
    """1 when the program in the answer passes all of its tests; `partial: true` gives the share that it passes.

    `test_seconds` is the time of one test, `seconds` of all, where `rollout.score_deadline` is no shorter. What `truth`
    may be, `read_tests` says.
    """
    tests, program = read_tests(truth), code_in(str(answer))
    if program is None:
        return 0.0
    verdict = await run_tests(program, tests, test_seconds=test_seconds, seconds=seconds)
    return verdict.fraction if partial else float(verdict.passed == verdict.total)


def code_in(text: str) -> str | None:
    """The program that a text gives: its last Python block, else its last block, else all of it if it is Python.

    The last block need not be closed. Graders and workflows read a model's program with this one function.
    """
    blocks = _blocks(text)
    named = [code for language, code in blocks if language in PYTHON]
    if blocks:
        return (named or [code for _, code in blocks])[-1]
    return text if _is_python(text) else None


def _blocks(text: str) -> list[tuple[str, str]]:
    """The fenced blocks of a text, each with its language. Line by line: a pattern could look at a line many times."""
    blocks: list[tuple[str, list[str]]] = []
    inside = False
    for line in io.StringIO(text, newline="\n"):  # not splitlines, which also ends a line at a form feed
        fence = LANGUAGE.match(line)
        if inside and fence:
            inside = False
        elif inside:
            blocks[-1][1].append(line)
        elif fence and line.endswith("\n"):
            blocks.append((fence["language"].lower(), []))
            inside = True
    return [(language, "".join(lines)) for language, lines in blocks]


async def run_tests(program: str, tests: Tests, *, test_seconds: float = 4.0, seconds: float = 20.0) -> Verdict:
    """Try a program on its tests in the sandbox, and tell which it did not pass, with input, expected and got."""
    token = secrets.token_hex(8)
    request = {
        "token": token,
        "kind": tests.kind,
        "program": tests.whole(program),
        "inputs": [] if tests.kind == "checks" else list(tests.inputs),  # the script of checks has them
        "expected": list(tests.expected),
        "function": tests.function,
        "script": tests.script,
        "names": list(tests.names),
        "entry": tests.entry,
        "seconds": test_seconds,
    }
    # In two parts: the program's process is made between the reading of the first and of the second.
    known = marshal.dumps({"modules": _modules(), "before": tests.before})
    given = len(known).to_bytes(8, "big") + known + marshal.dumps(request)
    limits = Limits(seconds=min(seconds, 2 + test_seconds * len(tests.inputs)), output=OUTPUT)
    ran = await shared().run(HARNESS, stdin=given, limits=limits)
    lines = [line.removeprefix(token) for line in ran.stdout.split("\n")[:-1] if line.startswith(token)]
    records = [json.loads(line) for line in lines]
    return _judged_checks(tests, records, ran) if tests.kind == "checks" else _judged(tests, records, ran)


@cache
def _modules() -> list[tuple[str, CodeType]]:
    folder = Path(__file__).parent
    files = {f"coterie.rewards.code.{name}": folder / f"{name}.py" for name in INSIDE}
    return [(name, compile(path.read_text(), path.name, "exec", dont_inherit=True)) for name, path in files.items()]


def _judged(tests: Tests, records: list[dict[str, Any]], ran: Ran) -> Verdict:
    told = {record["test"]: record for record in records if "test" in record}
    missing = {"passed": False, "got": _why_not_all(records, ran)}
    failures = []
    for number, (given, wanted) in enumerate(zip(tests.inputs, tests.expected, strict=True)):
        record = told.get(number, missing)
        if not record["passed"]:
            failures.append(_failure(number, given, wanted, record["got"]))
    every = frozenset(range(len(tests.inputs)))
    return Verdict(len(every) - len(failures), len(every), tuple(failures), every)


def _judged_checks(tests: Tests, records: list[dict[str, Any]], ran: Ran) -> Verdict:
    """An assert in a loop is passed when it was every time. One that test code never came to counts only where
    that is the program's fault: when the tests did not come to their end."""
    done = any("done" in record for record in records)
    told: dict[int, dict[str, Any]] = {}
    for record in records:
        if "test" in record and told.get(record["test"], {"passed": True})["passed"]:
            told[record["test"]] = record
    failures = []
    for number, source in enumerate(tests.inputs):
        if number in told and not told[number]["passed"]:
            record = told[number]
            failures.append(_failure(number, source, record.get("expected", ""), record["got"]))
    if not done:
        missing = [number for number in range(len(tests.inputs)) if number not in told] or [len(tests.inputs)]
        why = _why_not_all(records, ran)
        failures += [_failure(n, [*tests.inputs, "the end of the tests"][n], "", why) for n in missing]
    total = len(told) if done else max(len(tests.inputs), len(told) + (len(told) == len(tests.inputs)))
    reached = frozenset([*told, *(failure.test for failure in failures)])
    return Verdict(total - len(failures), max(total, 1), tuple(failures), reached)


def _why_not_all(records: list[dict[str, Any]], ran: Ran) -> str:
    """Why tests have no result of their own."""
    broken = [record["broken"] for record in records if "broken" in record]
    if broken:
        return str(broken[0])
    if ran.ended == "timeout":
        return f"timeout: all tests together took more than {ran.seconds:.0f} s"
    last = ran.stderr.strip().rpartition("\n")[2]
    return f"the run ended before this test: {ran.ended}, exit code {ran.exit}{f', {last}' if last else ''}"


def _failure(number: int, given: Any, wanted: Any, got: Any) -> Failure:
    shown = [value if isinstance(value, str) else json.dumps(value) for value in (given, wanted, got)]
    return Failure(number, *(text if len(text) <= SHOWN else text[:SHOWN] + " …" for text in shown))


def _is_python(text: str) -> bool:
    """Whether a whole text is Python, or would be as the rest of a function."""
    if len(text) > LONGEST:
        return False
    for candidate in (text, "if True:\n" + text):
        try:
            return bool(ast.parse(candidate).body)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            continue
    return False
