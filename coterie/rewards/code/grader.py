"""Code reward: extract the program from an answer and run its unit tests in the sandbox."""

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

from coterie.rewards.code.test_formats import ProgramTests, read_tests
from coterie.sandbox import Limits, RunResult, shared

# Modules sent to the sandbox, where Coterie is not installed, in the order of their imports.
MODULES = ("remote_object", "codec", "rpc", "program_process", "judge")
HARNESS = """
import marshal, os, sys
def take(count):
    parts = b""
    while len(parts) < count:
        parts += os.read(0, count - len(parts))
    return parts
job = marshal.loads(take(int.from_bytes(take(8), "big")))
for name, code in job["modules"]:
    sys.modules[name] = type(sys)(name)
    exec(code, vars(sys.modules[name]))
sys.modules[name].main(job)
"""
OUTPUT = 32 << 20  # bytes that all tests of a program may print together
SHOWN = 2000  # characters of an input or an output in a report
TEST_SECONDS, SECONDS = 4.0, 20.0  # deadlines of one test and of all
FENCE = re.compile(r"[ \t]*+```[ \t]*+(?P<language>[\w+#.-]*+)")
PYTHON = ("python", "python3", "py")
MAX_UNFENCED = 20_000  # characters of a program without a code fence: parsing blocks the event loop


@dataclass(frozen=True)
class Failure:
    """A test that a program did not pass."""

    test: int
    input: str
    expected: str
    got: str  # or what went wrong


@dataclass(frozen=True)
class Verdict:
    """The results of a program's tests."""

    passed: int
    total: int
    failures: tuple[Failure, ...]
    reached: frozenset[int] = field(default=frozenset(), compare=False)  # numbers of the tests with a result

    @property
    def fraction(self) -> float:
        return self.passed / self.total

    def first(self, count: int) -> Verdict:
        """The verdict on the first `count` tests."""
        failures = tuple(failure for failure in self.failures if failure.test < count)
        reached = frozenset(test for test in self.reached if test < count)
        return Verdict(len(reached) - len(failures), max(len(reached), 1), failures, reached)

    def outputs(self, count: int) -> tuple[str, ...]:
        """What the program returned on each of `count` tests; "as expected" where it passed. Programs with the same
        behavior have equal outputs, so a vote can compare them."""
        got = {failure.test: failure.got for failure in self.failures}
        return tuple(got.get(number, "as expected") for number in range(count))

    def __str__(self) -> str:
        """A report for the model that repairs the program."""
        parts = [f"{self.passed} of {self.total} tests passed."]
        for failure in self.failures:
            parts.append(f"Input:\n{failure.input}\nExpected:\n{failure.expected}\nGot:\n{failure.got}")
        return "\n\n".join(parts)


async def code(
    answer: Any,
    truth: Any,
    *,
    partial: bool = False,  # give the fraction of tests passed, not 0 or 1
    test_seconds: float = TEST_SECONDS,  # seconds for one test
    seconds: float = SECONDS,  # seconds for all tests; at most rollout.score_deadline
) -> float:
    """1 if the program in the answer passes all of its tests; `partial: true` gives the fraction that it passes.

    `test_seconds` is the deadline of one test, `seconds` of all, capped by `rollout.score_deadline`. For the formats of
    `truth` see `read_tests`.
    """
    tests, program = read_tests(truth), code_in(str(answer))
    if program is None:
        return 0.0
    verdict = await run_tests(program, tests, test_seconds=test_seconds, seconds=seconds)
    return verdict.fraction if partial else float(verdict.passed == verdict.total)


def code_in(text: str) -> str | None:
    """Extract the program: the last Python code block, else the last code block, else the whole text if it is Python.

    The last block need not be closed. Graders and workflows both use this function, so that they agree.
    """
    blocks = _blocks(text)
    named = [code for language, code in blocks if language in PYTHON]
    if blocks:
        return (named or [code for _, code in blocks])[-1]
    return text if _is_python(text) else None


def _blocks(text: str) -> list[tuple[str, str]]:
    """The fenced code blocks of a text with their languages. Line by line, because a regex could backtrack."""
    blocks: list[tuple[str, list[str]]] = []
    inside = False
    for line in io.StringIO(text, newline="\n"):  # not splitlines, which also splits at form feeds
        fence = FENCE.match(line)
        language = fence["language"].lower() if fence else ""
        if inside and fence and language not in PYTHON:
            inside = False
        elif inside and not fence:
            blocks[-1][1].append(line)
        elif fence and line.endswith("\n"):  # a Python fence also within a block that was not closed
            blocks.append((language, []))
            inside = True
    return [(language, "".join(lines)) for language, lines in blocks]


async def run_tests(
    program: str, tests: ProgramTests, *, test_seconds: float = TEST_SECONDS, seconds: float = SECONDS
) -> Verdict:
    """Run a program's tests in the sandbox; the verdict lists each failure with input, expected and got."""
    token = secrets.token_hex(8)
    request = {
        "token": token,
        "kind": tests.kind,
        "program": tests.complete(program),
        "inputs": [] if tests.kind == "checks" else list(tests.inputs),  # already in the script
        "expected": list(tests.expected),
        "function": tests.function,
        "script": tests.script,
        "names": list(tests.names),
        "entry": tests.entry,
        "seconds": test_seconds,
    }
    # Two parts: the judge forks the program's process before it reads the second, which has the expected values.
    job = marshal.dumps({"modules": _modules(), "prelude": tests.prelude})
    stdin = len(job).to_bytes(8, "big") + job + marshal.dumps(request)
    limits = Limits(seconds=min(seconds, 2 + test_seconds * len(tests.inputs)), output=OUTPUT)
    ran = await shared().run(HARNESS, stdin=stdin, limits=limits)
    lines = [line.removeprefix(token) for line in ran.stdout.split("\n")[:-1] if line.startswith(token)]
    records = [json.loads(line) for line in lines]
    return _verdict(tests, records, ran)


@cache
def _modules() -> list[tuple[str, CodeType]]:
    folder = Path(__file__).parent
    files = {f"coterie.rewards.code.{name}": folder / f"{name}.py" for name in MODULES}
    return [(name, compile(path.read_text(), path.name, "exec", dont_inherit=True)) for name, path in files.items()]


def _verdict(tests: ProgramTests, records: list[dict[str, Any]], ran: RunResult) -> Verdict:
    """An assert in a loop passes if it passed every time. Tests without a result count as failures, except asserts that
    were not reached although the test code ran to its end: that is not the program's fault."""
    results: dict[int, dict[str, Any]] = {}
    for record in records:
        if "test" in record and results.get(record["test"], {"passed": True})["passed"]:
            results[record["test"]] = record
    count, failed = len(tests.inputs), {n: record for n, record in results.items() if not record["passed"]}
    done = any("done" in record for record in records) if tests.kind == "checks" else len(results) == count
    if not done:
        missing = [number for number in range(count) if number not in results] or [count]
        failed |= {number: {"got": _why_not_all(records, ran)} for number in missing}
    inputs = [*tests.inputs, "the end of the tests"]
    expected = dict(enumerate(tests.expected))
    failures = tuple(
        _failure(number, inputs[number], expected.get(number, record.get("expected", "")), record["got"])
        for number, record in sorted(failed.items(), key=lambda item: (item[0] not in results, item[0]))
    )
    total = len(results) if done else max(count, len(results) + (len(results) == count))
    return Verdict(total - len(failures), max(total, 1), failures, frozenset([*results, *failed]))


def _why_not_all(records: list[dict[str, Any]], ran: RunResult) -> str:
    """Why some tests have no result."""
    broken = [record["broken"] for record in records if "broken" in record]
    if broken:
        return str(broken[0])
    if ran.status == "timeout":
        return f"timeout: all tests together took more than {ran.seconds:.0f} s"
    last = ran.stderr.strip().rpartition("\n")[2]
    return f"the run ended before this test: {ran.status}, exit code {ran.exit_code}{f', {last}' if last else ''}"


def _failure(number: int, input: Any, expected: Any, got: Any) -> Failure:
    shown = [value if isinstance(value, str) else json.dumps(value) for value in (input, expected, got)]
    return Failure(number, *(text if len(text) <= SHOWN else text[:SHOWN] + " …" for text in shown))


def _is_python(text: str) -> bool:
    """True if the whole text parses as Python, or as the body of a function."""
    if len(text) > MAX_UNFENCED:
        return False
    for candidate in (text, "if True:\n" + text):
        try:
            return bool(ast.parse(candidate).body)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            continue
    return False
