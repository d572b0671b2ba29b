"""Runs in the sandbox: the judge runs a program's tests, compares results and reports each test.

Two processes. The program runs in a fork that was made before the judge read any test, and answers requests over RPC
(`program_process`). The tests run here, with a `RemoteObject` for each of the program's functions, and results are
compared here. So a program never sees an expected value, cannot override comparisons (its objects equal only each
other), and sends the judge only plain data. What it writes to the judge's stdout lacks the secret token.

Known limits: a program sees the arguments of its tests, and passes weak tests with any truthy result (`assert f(1)`).
Without bubblewrap it runs with the rights of the user.
"""

from __future__ import annotations

import _signal as signal
import marshal
import math
import os
import sys
import time

from coterie.rewards.code.codec import is_program_class
from coterie.rewards.code.program_process import ProgramProcess, to_json
from coterie.rewards.code.rpc import SHOWN, RemoteError, Rpc, describe_error, safe_repr

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

PR_SET_DUMPABLE = 4
MAX_NUMBER = 70  # characters
TOLERANCE = 1e-6  # for floats, relative and absolute


def main(job: dict[str, Any]) -> None:
    """`job` has only what the program may see; the tests are read from stdin after the fork."""
    sys.setrecursionlimit(20_000)
    out, null = os.dup(1), os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 1)  # prints of the tests must not mix with reports
    prelude, error = run_prelude(job["prelude"])
    rpc = fork_program(prelude, out, null)
    forbid_ptrace()
    Judge(rpc, prelude, marshal.loads(sys.stdin.buffer.read()), out).judge(error)
    os._exit(0)


def run_prelude(source: str) -> tuple[dict[str, Any], BaseException | None]:
    """Execute the dataset's code that goes before the program; returns its names, and its error or None."""
    prelude: dict[str, Any] = {"__name__": "program"}
    try:
        exec(compile(source, "prelude.py", "exec", dont_inherit=True), prelude)
    except BaseException as error:  # reported as the tests' own
        return prelude, error
    return prelude, None


def fork_program(prelude: dict[str, Any], out: int, null: int) -> Rpc:
    """Fork the program's process; the judge's end of the RPC connection to it."""
    classes = {name: value for name, value in prelude.items() if isinstance(value, type) and is_program_class(value)}
    (program_reads, judge_writes), (judge_reads, program_writes) = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        os.dup2(null, 0)
        os.dup2(null, 2)
        for number in (out, judge_writes, judge_reads):
            os.close(number)
        ProgramProcess(Rpc(program_reads, program_writes, classes, may_export=lambda value: True), prelude).serve()
    os.close(program_reads)
    os.close(program_writes)
    sys.path.pop(0)  # the job's folder, where a program may write a math.py
    rpc = Rpc(judge_reads, judge_writes, classes, may_export=callable)
    rpc.interrupt_peer = lambda: interrupt(child)
    return rpc


def interrupt(child: int) -> None:
    try:  # noqa: SIM105
        os.kill(child, signal.SIGALRM)
    except ProcessLookupError:
        pass


def forbid_ptrace() -> None:
    """Keep other processes of the same user from reading this one's memory and files."""
    if sys.platform == "linux":
        import _ctypes  # the C module behind ctypes

        this_program: Any = None
        prctl = _ctypes.dlsym(_ctypes.dlopen(this_program, 0), "prctl")
        _ctypes.call_function(prctl, (PR_SET_DUMPABLE, 0, 0, 0, 0))


class Judge:
    """Runs the tests of one request and reports their results on stdout."""

    def __init__(self, rpc: Rpc, prelude: dict[str, Any], request: dict[str, Any], out: int) -> None:
        self.rpc, self.prelude, self.request, self.out = rpc, prelude, request, out
        rpc.seconds = request["seconds"]
        rpc.handler = self.handle

    def judge(self, error: BaseException | None) -> None:
        try:
            if error:
                raise error
            {"calls": self.calls, "checks": self.checks, "stdin": self.stdin}[self.request["kind"]]()
        except BaseException as error:  # the program could not be defined, or test code failed outside of a test
            self.report(broken=describe_error(error))

    def report(self, **record: Any) -> None:
        line = memoryview(f"{self.request['token']} {to_json(record)}\n".encode())
        while line:
            line = line[os.write(self.out, line) :]

    def handle(self, verb: str, function: Callable[..., Any], *parts: Any) -> tuple[Any, list[Any]]:
        """Requests of the program: it may call the functions that a test passed to it, and nothing else."""
        if verb != "call" or not any(function is passed for passed in self.rpc.codec.exported):
            raise TypeError("a program may only call functions that a test passed to it")
        arguments, keywords = parts
        return function(*arguments, **keywords), []

    def calls(self) -> None:
        """Call the program's function with each input."""
        self.rpc.ask("define", self.request["program"], [])
        for number, arguments in enumerate(self.request["inputs"]):
            self.compare(number, same_value, self.call_entry, arguments)

    def call_entry(self, arguments: list[Any]) -> Any:
        text = self.rpc.ask("call_entry", self.request["function"], arguments)
        return self.rpc.codec.decode_json(text)

    def stdin(self) -> None:
        """Run the program as a script on each input."""
        self.rpc.ask("script", self.request["program"])
        for number, text in enumerate(self.request["inputs"]):
            self.compare(number, same_output, self.run_script, text)

    def run_script(self, text: str) -> str:
        stdout, error = self.rpc.ask("run", text)
        if error:
            raise RemoteError(error)
        return str(stdout)

    def compare(self, number: int, same: Callable[[Any, Any], bool], run: Callable[[Any], Any], argument: Any) -> None:
        try:
            value = run(argument)
            got = value if isinstance(value, str) else to_json(value)
            self.report(test=number, passed=same(value, self.request["expected"][number]), got=got[: SHOWN + 1])
        except BaseException as error:
            self.report(test=number, passed=False, got=describe_error(error))

    def checks(self) -> None:
        """Run test code in which each assert was rewritten into a call of `__check__`."""
        namespace = {name: value for name, value in self.prelude.items() if name != self.request["entry"]}
        names = [name for name in self.request["names"] if name not in namespace]
        for name, (kind, content) in self.rpc.ask("define", self.request["program"], names).items():
            namespace[name] = content if kind == "value" else self.from_standard_library(name, kind, content)
        namespace["__check__"] = self.check
        exec(compile(self.request["script"], "tests.py", "exec", dont_inherit=True), namespace)
        self.report(done=True)

    def from_standard_library(self, name: str, kind: str, module: str) -> Any:
        """Import what the program imported from the standard library, so that the program cannot replace it."""
        if module.partition(".")[0] not in sys.stdlib_module_names:
            raise NameError(f"{name} is {module}, which the tests do not know")
        found = __import__(module, fromlist=[""])
        return vars(found)[name] if kind == "python" else found

    def check(self, number: int, got: Callable[[], Any], *expected: Callable[[], Any]) -> None:
        self.rpc.deadline = time.monotonic() + self.request["seconds"]
        try:
            value = got()
            reference = expected[0]() if expected else True
            passed = bool(value == reference if expected else value)
            shown = {} if passed else {"got": safe_repr(value), "expected": safe_repr(reference)}
            self.report(test=number, passed=passed, **shown)
        except BaseException as error:
            self.report(test=number, passed=False, got=describe_error(error))
        finally:
            self.rpc.deadline = None


def same_output(output: str, expected: str) -> bool:
    """Compare two texts line by line, ignoring whitespace between words and float rounding."""
    output, expected = output.strip(), expected.strip()
    if output == expected:
        return True
    ours, theirs = output.splitlines(), expected.splitlines()
    lines = zip(ours, theirs, strict=True)
    return len(ours) == len(theirs) and all(a == b or _same_words(a.split(), b.split()) for a, b in lines)


def _same_words(output: list[str], expected: list[str]) -> bool:
    return len(output) == len(expected) and all(a == b or _close(a, b) for a, b in zip(output, expected, strict=True))


def _close(output: str, expected: str) -> bool:
    if max(len(output), len(expected)) > MAX_NUMBER or not set(output + expected) <= set("+-.eE0123456789"):
        return False
    try:
        if set(expected) & set(".eE"):
            return math.isclose(float(output), float(expected), rel_tol=TOLERANCE, abs_tol=TOLERANCE)
        return int(output) == int(expected)
    except ValueError:  # not a number, or a float where an integer is expected
        return False


def same_value(got: Any, expected: Any) -> bool:
    """Compare two JSON values. Some datasets wrap each expected value in a list."""
    if _equal(got, expected):
        return True
    return isinstance(expected, list) and len(expected) == 1 and _equal(got, expected[0])


def _equal(got: Any, expected: Any) -> bool:
    if isinstance(expected, float) and isinstance(got, (int, float)):
        return got == expected or math.isclose(got, expected, rel_tol=TOLERANCE, abs_tol=TOLERANCE)
    if isinstance(expected, list) and isinstance(got, list):
        return len(got) == len(expected) and all(_equal(a, b) for a, b in zip(got, expected, strict=True))
    if isinstance(expected, dict) and isinstance(got, dict):
        return got.keys() == expected.keys() and all(_equal(got[key], expected[key]) for key in expected)
    return bool(got == expected)
