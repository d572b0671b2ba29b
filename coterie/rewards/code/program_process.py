"""Runs in the sandbox, in a process of its own: the program, and what it may be asked to do.

All that a program can do in here it does to itself: what its tests expect never comes here.
"""

from __future__ import annotations

import _signal as signal  # what signal is made of, without what that takes to import
import io
import operator
import os
import sys
from _json import encode_basestring_ascii as quoted

from coterie.rewards.code.codec import plain, scalar
from coterie.rewards.code.rpc import SHOWN, Line, Overtime, shown

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import CodeType
    from typing import Any

MOST = 4 << 20  # bytes of a program's output that are looked at


class Child:
    """A program that was not run yet."""

    def __init__(self, line: Line, before: dict[str, Any]) -> None:
        self.line, self.before, self.space = line, before, dict(before)
        self.busy = False
        signal.signal(signal.SIGALRM, self.interrupted)
        line.do = self.do

    def serve(self) -> None:
        while True:
            _, number, verb, parts = self.line.next()
            self.line.answer(number, verb, parts)

    def do(self, verb: str, *parts: Any) -> Any:
        was, self.busy = self.busy, True
        try:
            return DOES[verb](self, *parts)
        finally:
            self.busy = was

    def interrupted(self, *_: object) -> None:
        if self.busy:  # else it came too late
            raise Overtime("its time is up")

    def define(self, source: str, names: list[str]) -> dict[str, Any]:
        """Run the program for its definitions; those that are asked for."""
        exec(compile(source, "program.py", "exec", dont_inherit=True), self.space)
        return {name: self.named(name) for name in names if name in self.space}

    def named(self, name: str) -> list[Any]:
        """A name that is Python's own is told by its module: the tests get it from there, not from the program."""
        value = self.space[name]
        if isinstance(value, type(sys)):
            return ["module", value.__name__]
        if isinstance(value, (type, type(len), type(following))) and value.__module__ in sys.stdlib_module_names:
            return ["python", value.__module__]
        return ["value", value]

    def called(self, name: str, arguments: list[Any]) -> str:
        """What a function, or a method of the class Solution, returns; as JSON."""
        # A name that was there before is no work of the program's.
        own = self.space.get(name) if self.space.get(name) is not self.before.get(name) else None
        function = own or getattr(self.space["Solution"](), name)
        return encoded(function(*arguments))

    def call(self, function: Any, arguments: tuple[Any, ...], named: dict[str, Any]) -> tuple[Any, list[Any]]:
        given = {n: part for n, part in enumerate(arguments) if isinstance(part, (list, dict, set))}
        as_given = {n: self.line.wire.encoded(part) for n, part in given.items()}
        value = function(*arguments, **named)
        return value, [[n, part] for n, part in given.items() if self.line.wire.encoded(part) != as_given[n]]

    def script(self, source: str) -> None:
        self.program = compile(source, "program.py", "exec", dont_inherit=True)

    def run(self, text: str) -> tuple[str, str | None]:
        """What the whole program prints for an input, and what went wrong."""
        with open("stdin", "w+b", 0) as given, open("stdout", "w+b", 0) as out, open("stderr", "w+b", 0) as err:
            given.write(text.encode("utf-8", "replace"))
            given.seek(0)
            child = os.fork()
            if child == 0:
                as_script(self.program, [given, out, err])
            error = waited(child)
            said, words = (os.pread(file.fileno(), MOST, 0).decode("utf-8", "replace") for file in (out, err))
        return said, error and (words.strip()[-SHOWN:] or error)


def following(items: Iterator[Any]) -> tuple[Any, ...]:
    """The next item, if there is one."""
    for item in items:
        return (item,)
    return ()


DOES: dict[str, Any] = {
    **{name: getattr(Child, name) for name in ("define", "called", "call", "script", "run")},
    "getattr": lambda _, *parts: getattr(*parts),
    "setattr": lambda _, *parts: setattr(*parts),
    "getitem": lambda _, *parts: operator.getitem(*parts),
    "setitem": lambda _, *parts: operator.setitem(*parts),
    "operate": lambda _, name, *parts: getattr(operator, name)(*parts),
    "same": lambda _, one, other: bool(one == other),
    "plain": lambda _, value: plain(value),
    "len": lambda _, value: len(value),
    "bool": lambda _, value: bool(value),
    "repr": lambda _, value: shown(value),
    "str": lambda _, value: str(value),
    "hash": lambda _, value: hash(value),
    "iter": lambda _, value: iter(value),
    "following": lambda _, items: following(items),
}


def encoded(value: Any) -> str:
    """A value as JSON. Tuples, sets and the like are lists; what JSON has no word for is shown as text."""
    if (text := scalar(value)) is not None:
        return text
    if isinstance(value, dict):
        return "{" + ",".join(f"{quoted(str(name))}:{encoded(part)}" for name, part in value.items()) + "}"
    try:
        parts = list(value)
    except TypeError:
        return quoted(shown(value))
    return "[" + ",".join(map(encoded, parts)) + "]"


def as_script(program: CodeType, pipes: list[Any]) -> None:
    """Be the program. SystemExit goes through, so that threads and exit functions come to their end."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    os.setsid()
    for number, pipe in enumerate(pipes):
        os.dup2(pipe.fileno(), number)
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


def waited(child: int) -> str | None:
    """How a program ended, if not well."""
    try:
        status = os.waitpid(child, 0)[1]
    except Overtime as error:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        return f"timeout: {error}"
    finally:
        try:  # noqa: SIM105
            os.killpg(child, signal.SIGKILL)  # what it left running
        except ProcessLookupError:
            pass
    code = os.waitstatus_to_exitcode(status)
    return f"ended with exit code {code}" if code else None
