"""Runs in the sandbox: the process of the untrusted program that a model wrote, and the requests that it answers.

Expected values never reach this process, so whatever a program does here, it cannot find them.
"""

from __future__ import annotations

import _signal as signal  # the C module behind signal, which imports enum
import io
import operator
import os
import sys
from _json import encode_basestring_ascii as quoted

from coterie.rewards.code.codec import as_builtin, encode_scalar
from coterie.rewards.code.rpc import SHOWN, DeadlineExceeded, Rpc, safe_repr

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import CodeType
    from typing import Any

MAX_OUTPUT = 4 << 20  # bytes of a program's output that are compared


class ProgramProcess:
    """Serves requests about a program. The program runs on the first of them."""

    def __init__(self, rpc: Rpc, prelude: dict[str, Any]) -> None:
        self.rpc, self.prelude, self.namespace = rpc, prelude, dict(prelude)
        self.busy = False
        signal.signal(signal.SIGALRM, self.on_alarm)
        rpc.handler = self.handle

    def serve(self) -> None:
        while True:
            _, number, verb, parts = self.rpc.receive()
            self.rpc.answer(number, verb, parts)

    def handle(self, verb: str, *parts: Any) -> Any:
        was, self.busy = self.busy, True
        try:
            return HANDLERS[verb](self, *parts)
        finally:
            self.busy = was

    def on_alarm(self, *_: object) -> None:
        if self.busy:  # else the request has ended meanwhile
            raise DeadlineExceeded("its time is up")

    def define(self, source: str, names: list[str]) -> dict[str, Any]:
        """Execute the program, and return the requested names that it defines."""
        exec(compile(source, "program.py", "exec", dont_inherit=True), self.namespace)
        return {name: self.definition(name) for name in names if name in self.namespace}

    def definition(self, name: str) -> list[Any]:
        """A name from the standard library is sent as its module: the tests import it themselves."""
        value = self.namespace[name]
        if isinstance(value, type(sys)):
            return ["module", value.__name__]
        if isinstance(value, (type, type(len), type(next_item))) and value.__module__ in sys.stdlib_module_names:
            return ["python", value.__module__]
        return ["value", value]

    def call_entry(self, name: str, arguments: list[Any]) -> str:
        """Call a function of the program, or a method of its class Solution; the result as JSON."""
        # A name of the prelude is not the program's.
        own = self.namespace.get(name) if self.namespace.get(name) is not self.prelude.get(name) else None
        function = own or getattr(self.namespace["Solution"](), name)
        return to_json(function(*arguments))

    def call(self, function: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> tuple[Any, list[Any]]:
        """Call a function; also returns the mutable arguments that it changed, by position."""
        mutable = {n: part for n, part in enumerate(arguments) if isinstance(part, (list, dict, set))}
        before = {n: self.rpc.codec.encode(part) for n, part in mutable.items()}
        value = function(*arguments, **keywords)
        return value, [[n, part] for n, part in mutable.items() if self.rpc.codec.encode(part) != before[n]]

    def script(self, source: str) -> None:
        self.program = compile(source, "program.py", "exec", dont_inherit=True)

    def run(self, text: str) -> tuple[str, str | None]:
        """Run the whole program on an input in a fork: what it printed, and its error."""
        with open("stdin", "w+b", 0) as given, open("stdout", "w+b", 0) as out, open("stderr", "w+b", 0) as err:
            given.write(text.encode("utf-8", "replace"))
            given.seek(0)
            child = os.fork()
            if child == 0:
                run_script(self.program, [given, out, err])
            error = wait_for(child)
            stdout, stderr = (os.pread(file.fileno(), MAX_OUTPUT, 0).decode("utf-8", "replace") for file in (out, err))
        return stdout, error and (stderr.strip()[-SHOWN:] or error)


def next_item(items: Iterator[Any]) -> tuple[Any, ...]:
    """The next item as a tuple of one; empty at the end."""
    for item in items:
        return (item,)
    return ()


HANDLERS: dict[str, Any] = {
    **{name: getattr(ProgramProcess, name) for name in ("define", "call_entry", "call", "script", "run")},
    "getattr": lambda _, *parts: getattr(*parts),
    "setattr": lambda _, *parts: setattr(*parts),
    "getitem": lambda _, *parts: operator.getitem(*parts),
    "setitem": lambda _, *parts: operator.setitem(*parts),
    "operate": lambda _, name, *parts: getattr(operator, name)(*parts),
    "eq": lambda _, one, other: bool(one == other),
    "as_builtin": lambda _, value: as_builtin(value),
    "len": lambda _, value: len(value),
    "bool": lambda _, value: bool(value),
    "repr": lambda _, value: safe_repr(value),
    "str": lambda _, value: str(value),
    "hash": lambda _, value: hash(value),
    "iter": lambda _, value: iter(value),
    "next": lambda _, items: next_item(items),
}


def to_json(value: Any) -> str:
    """A value as JSON: iterables become lists, anything else that JSON lacks becomes its repr."""
    if (text := encode_scalar(value)) is not None:
        return text
    if isinstance(value, dict):
        return "{" + ",".join(f"{quoted(str(name))}:{to_json(part)}" for name, part in value.items()) + "}"
    try:
        parts = list(value)
    except TypeError:
        return quoted(safe_repr(value))
    return "[" + ",".join(map(to_json, parts)) + "]"


def run_script(program: CodeType, files: list[Any]) -> None:
    """Run the program as `__main__` of this forked process. SystemExit propagates, so that threads and atexit functions
    still run."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    os.setsid()
    for number, file in enumerate(files):
        os.dup2(file.fileno(), number)
    sys.stdin = io.TextIOWrapper(io.BufferedReader(io.FileIO(0, closefd=False)))
    sys.stdout = io.TextIOWrapper(io.BufferedWriter(io.FileIO(1, "w", closefd=False)))
    main = type(sys)("__main__")
    sys.modules["__main__"] = main
    try:
        exec(program, main.__dict__)
    except SystemExit:
        raise
    except BaseException as error:
        own = error.__traceback__.tb_next if error.__traceback__ else None
        sys.excepthook(type(error), error.with_traceback(own), own)
        raise SystemExit(1) from None
    raise SystemExit(0)


def wait_for(child: int) -> str | None:
    """Wait for a script and kill what it left running; its error, or None."""
    try:
        status = os.waitpid(child, 0)[1]
    except DeadlineExceeded as error:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        return f"timeout: {error}"
    finally:
        try:  # noqa: SIM105
            os.killpg(child, signal.SIGKILL)
        except ProcessLookupError:
            pass
    code = os.waitstatus_to_exitcode(status)
    return f"ended with exit code {code}" if code else None
