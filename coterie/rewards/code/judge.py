"""Runs in the sandbox: tries a program on its tests and reports, test by test, what came of each.

Two processes. The program lives in a fork that was made before anything of the tests was read, and gives values when
it is asked; here the tests run, with the program's functions far away, and here results are compared. So a program
has nothing to look up and nobody to persuade: it never meets an expected value, its classes equal only their like,
and this process takes nothing from it but plain data. What it could write to our standard output lacks the token.

What remains: a program sees the arguments of its tests, and can pass tests that anything passes (`assert f(1)`).
Without bubblewrap it runs as the user who trains, and nothing here keeps it from that user's files.
"""

from __future__ import annotations

import _signal as signal
import marshal
import os
import sys
import time

from coterie.rewards.code.codec import own
from coterie.rewards.code.program_process import Child, encoded
from coterie.rewards.code.rpc import SHOWN, Line, Told, shown, told
from coterie.rewards.code.same import same_output, same_value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

SET_DUMPABLE = 4  # prctl's number for it


def main(known: dict[str, Any]) -> None:
    """`known` is what a program may see; its tests are still to be read from standard input."""
    sys.setrecursionlimit(20_000)
    out, nowhere = os.dup(1), os.open(os.devnull, os.O_RDWR)
    os.dup2(nowhere, 1)  # what tests print is none of our reports
    before, error = defined_before(known["before"])
    line = parted(before, out, nowhere)
    hide()
    Judge(line, before, marshal.loads(sys.stdin.buffer.read()), out).judge(error)
    os._exit(0)


def defined_before(source: str) -> tuple[dict[str, Any], BaseException | None]:
    before: dict[str, Any] = {"__name__": "program"}
    try:
        exec(compile(source, "before.py", "exec", dont_inherit=True), before)
    except BaseException as error:  # it is the data's, and may be anything
        return before, error
    return before, None


def parted(before: dict[str, Any], out: int, nowhere: int) -> Line:
    """Let the program's process go its way; what is left here is the line to it."""
    classes = {name: value for name, value in before.items() if isinstance(value, type) and own(value)}
    (hears, asks), (listens, answers) = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        os.dup2(nowhere, 0)
        os.dup2(nowhere, 2)
        for number in (out, asks, listens):
            os.close(number)
        Child(Line(hears, answers, classes, lends=lambda value: True), before).serve()
    os.close(hears)
    os.close(answers)
    sys.path.pop(0)  # the job's folder, into which a program may put a math.py of its own
    line = Line(listens, asks, classes, lends=callable)
    line.ring = lambda: rung(child)
    return line


def rung(child: int) -> None:
    try:  # noqa: SIM105
        os.kill(child, signal.SIGALRM)
    except ProcessLookupError:
        pass


def hide() -> None:
    """Let no process of the same user look into this one."""
    if sys.platform == "linux":
        import _ctypes  # without what ctypes takes to import

        this: Any = None  # program, with its C library
        prctl = _ctypes.dlsym(_ctypes.dlopen(this, 0), "prctl")
        _ctypes.call_function(prctl, (SET_DUMPABLE, 0, 0, 0, 0))


class Judge:
    """Asks a program and reports."""

    def __init__(self, line: Line, before: dict[str, Any], request: dict[str, Any], out: int) -> None:
        self.line, self.before, self.request, self.out = line, before, request, out
        line.seconds = request["seconds"]
        line.do = self.do

    def judge(self, error: BaseException | None) -> None:
        try:
            if error:
                raise error
            {"calls": self.calls, "checks": self.checks, "stdin": self.stdin}[self.request["kind"]]()
        except BaseException as error:  # it could not be defined, or test code failed outside of a test
            self.report(broken=told(error))

    def report(self, **record: Any) -> None:
        line = memoryview(f"{self.request['token']} {encoded(record)}\n".encode())
        while line:
            line = line[os.write(self.out, line) :]

    def do(self, verb: str, function: Callable[..., Any], *parts: Any) -> tuple[Any, list[Any]]:
        """A program may call the functions that a test handed it."""
        if verb != "call" or not any(function is lent for lent in self.line.wire.kept):
            raise TypeError("a program may only call what a test hands it")
        arguments, named = parts
        return function(*arguments, **named), []

    def calls(self) -> None:
        self.line.ask("define", self.request["program"], [])
        for number, arguments in enumerate(self.request["inputs"]):
            self.compare(number, same_value, self.called, arguments)

    def called(self, arguments: list[Any]) -> Any:
        text = self.line.ask("called", self.request["function"], arguments)
        return self.line.wire.json(text)

    def stdin(self) -> None:
        self.line.ask("script", self.request["program"])
        for number, text in enumerate(self.request["inputs"]):
            self.compare(number, same_output, self.ran, text)

    def ran(self, text: str) -> str:
        said, error = self.line.ask("run", text)
        if error:
            raise Told(error)
        return str(said)

    def compare(self, number: int, same: Callable[[Any, Any], bool], result: Callable[[Any], Any], given: Any) -> None:
        try:
            value = result(given)
            got = value if isinstance(value, str) else encoded(value)
            self.report(test=number, passed=same(value, self.request["expected"][number]), got=got[: SHOWN + 1])
        except BaseException as error:
            self.report(test=number, passed=False, got=told(error))

    def checks(self) -> None:
        """Run test code in which each assert was made a call of `__check__`."""
        space = {name: value for name, value in self.before.items() if name != self.request["entry"]}
        names = [name for name in self.request["names"] if name not in space]
        for name, (kind, content) in self.line.ask("define", self.request["program"], names).items():
            space[name] = content if kind == "value" else self.pythons(name, kind, content)
        space["__check__"] = self.check
        exec(compile(self.request["script"], "tests.py", "exec", dont_inherit=True), space)
        self.report(done=True)

    def pythons(self, name: str, kind: str, module: str) -> Any:
        """What Python itself means by a name that a program imported."""
        if module.partition(".")[0] not in sys.stdlib_module_names:
            raise NameError(f"{name} is {module}, which the tests do not know")
        found = __import__(module, fromlist=[""])
        return vars(found)[name] if kind == "python" else found

    def check(self, number: int, got: Callable[[], Any], *expected: Callable[[], Any]) -> None:
        self.line.until = time.monotonic() + self.request["seconds"]
        try:
            value = got()
            wanted = expected[0]() if expected else True
            passed = bool(value == wanted if expected else value)
            words = {} if passed else {"got": shown(value), "expected": shown(wanted)}
            self.report(test=number, passed=passed, **words)
        except BaseException as error:
            self.report(test=number, passed=False, got=told(error))
        finally:
            self.line.until = None
