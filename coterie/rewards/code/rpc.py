"""A line between two processes: each may ask the other, also while it is asked."""

from __future__ import annotations

import builtins
import os
import select
import time

from coterie.rewards.code.codec import Wire

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

SHOWN = 2000  # letters of a value or an error
UNREADABLE = (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError)


class Overtime(BaseException):
    """A test took too long. Not an Exception, which many programs catch."""


class Told(Exception):
    """An error of the other side, in its words or in words about it."""


class Line:
    """Asks and answers. `do` is what the other side may ask for."""

    def __init__(self, reads: int, writes: int, classes: dict[str, type], lends: Callable[[object], bool]) -> None:
        self.reads, self.writes, self.owner = reads, writes, os.getpid()
        self.wire = Wire(classes, lends, self.ask)
        self.do: Callable[..., Any] = refused
        self.heard = bytearray()
        self.asked = 0
        self.seconds: float | None = None  # for one answer, or for all until `until`
        self.until: float | None = None
        self.ring: Callable[[], None] = lambda: None  # tells the other side that its time is up

    def ask(self, verb: str, *parts: object) -> Any:
        self.asked += 1
        number, until = self.asked, self.until
        if until is None and self.seconds is not None:
            until = time.monotonic() + self.seconds
        self.write(self.wire.written(["ask", number, verb, list(parts)]))
        while True:
            kind, to, *content = self.next(until)
            if kind == "ask":
                self.answer(to, *content)
            elif to == number:  # else an answer that came too late
                return content[0] if kind == "value" else raised(*content)

    def answer(self, number: int, verb: str, parts: list[Any]) -> None:
        try:
            message = self.wire.written(["value", number, self.do(verb, *parts)])
        except BaseException as error:  # whatever it is, it is for the other side to know
            if os.getpid() != self.owner:  # a fork's error is its own affair
                raise
            message = self.wire.written(["error", number, ancestor(error), told(error)])
        if os.getpid() != self.owner:
            os._exit(0)
        self.write(message)

    def write(self, message: str) -> None:
        rest = memoryview(message.encode())
        while rest:
            try:
                rest = rest[os.write(self.writes, rest) :]
            except BrokenPipeError:
                raise Told("the program ended by itself") from None

    def next(self, until: float | None = None) -> list[Any]:
        """The next message."""
        line = self.line(until)
        try:
            kind, number, *content = self.wire.read(line)
        except UNREADABLE as error:
            raise Told(f"what the program gave cannot be read: {type(error).__name__}") from None
        return [kind, number, *content]

    def line(self, until: float | None) -> str:
        seen = 0
        while (end := self.heard.find(b"\n", seen)) < 0:
            seen = len(self.heard)
            left = None if until is None else max(until - time.monotonic(), 0.0)
            if not select.select([self.reads], [], [], left)[0]:
                self.ring()
                raise Overtime(f"took more than {self.seconds:g} s")
            part = os.read(self.reads, 1 << 16)
            if not part:
                raise Told("the program ended by itself")
            self.heard += part
        text = bytes(self.heard[:end]).decode("ascii", "replace")
        del self.heard[: end + 1]
        return text


def refused(verb: str, *parts: object) -> Any:
    raise TypeError(f"{verb} is not for a program to ask")


def raised(kind: str, words: str) -> Any:
    """Raise what the other side did, so that a test may expect it."""
    known = vars(builtins).get(kind)
    base = known if isinstance(known, type) and issubclass(known, Exception) else Exception
    if issubclass(base, StopIteration):  # it would end a loop of the tests: all(map(f, cases)) would hold
        base = RuntimeError
    error: Any = type(kind, (Told, base), {"__str__": lambda self: words})
    raise error.__new__(error)


def ancestor(error: BaseException) -> str:
    """The nearest class of Python's own that an error is of."""
    names = (kind.__name__ for kind in type(error).__mro__ if vars(builtins).get(kind.__name__) is kind)
    return next(names, "Exception")


def told(error: BaseException) -> str:
    """An error with the line of the program it comes from."""
    if isinstance(error, Told):
        return str(error)[: 2 * SHOWN]
    line, at = None, error.__traceback__
    while at is not None:
        line = at.tb_lineno if at.tb_frame.f_code.co_filename == "program.py" else line
        at = at.tb_next
    name = "timeout" if isinstance(error, Overtime) else type(error).__name__
    try:
        text = f"{name}: {error}"
    except BaseException:  # its own words may fail too
        text = name
    return text[:SHOWN] + (f" (line {line} of the program)" if line else "")


def shown(value: object) -> str:
    try:
        return repr(value)[:SHOWN]
    except BaseException as error:  # a class of the program's own may not be showable
        return f"<{type(value).__name__}, which cannot be shown: {told(error)}>"
