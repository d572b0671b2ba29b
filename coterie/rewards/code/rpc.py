"""RPC between the judge and the program's process over two pipes, with a deadline per request.

Both sides may send requests, also nested ones: while a request is being answered.
"""

from __future__ import annotations

import builtins
import os
import select
import time

from coterie.rewards.code.codec import Codec

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

SHOWN = 2000  # characters of a value or an error
MALFORMED = (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError)


class DeadlineExceeded(BaseException):
    """A test took too long. Not an Exception, which many programs catch."""


class RemoteError(Exception):
    """An exception of the other process, or a broken connection to it."""


class Rpc:
    """One end of the connection. `handler` answers the other side's requests."""

    def __init__(self, reads: int, writes: int, classes: dict[str, type], may_export: Callable[[object], bool]) -> None:
        self.reads, self.writes, self.owner = reads, writes, os.getpid()
        self.codec = Codec(classes, may_export, self.ask)
        self.handler: Callable[..., Any] = reject
        self.buffer = bytearray()
        self.requests = 0
        self.seconds: float | None = None  # for one request, unless `deadline` is set
        self.deadline: float | None = None  # for all requests of a test
        self.interrupt_peer: Callable[[], None] = lambda: None  # called at the deadline

    def ask(self, verb: str, *parts: object) -> Any:
        """Send a request and wait for its reply, answering requests of the other side meanwhile."""
        self.requests += 1
        number, deadline = self.requests, self.deadline
        if deadline is None and self.seconds is not None:
            deadline = time.monotonic() + self.seconds
        self.write(self.codec.encode_message(["ask", number, verb, list(parts)]))
        while True:
            kind, to, *content = self.receive(deadline)
            if kind == "ask":
                self.answer(to, *content)
            elif to == number:  # else a late reply to a request that timed out
                return content[0] if kind == "value" else raise_remote(*content)

    def answer(self, number: int, verb: str, parts: list[Any]) -> None:
        try:
            message = self.codec.encode_message(["value", number, self.handler(verb, *parts)])
        except BaseException as error:  # sent to the other side
            if os.getpid() != self.owner:  # raised in a fork that the program made
                raise
            message = self.codec.encode_message(["error", number, builtin_base(error), describe_error(error)])
        if os.getpid() != self.owner:
            os._exit(0)
        self.write(message)

    def write(self, message: str) -> None:
        rest = memoryview(message.encode())
        while rest:
            try:
                rest = rest[os.write(self.writes, rest) :]
            except BrokenPipeError:
                raise RemoteError("the program ended by itself") from None

    def receive(self, deadline: float | None = None) -> list[Any]:
        line = self.read_line(deadline)
        try:
            kind, number, *content = self.codec.decode_message(line)
        except MALFORMED as error:
            raise RemoteError(f"the program sent a malformed message: {type(error).__name__}") from None
        return [kind, number, *content]

    def read_line(self, deadline: float | None) -> str:
        searched = 0
        while (end := self.buffer.find(b"\n", searched)) < 0:
            searched = len(self.buffer)
            left = None if deadline is None else max(deadline - time.monotonic(), 0.0)
            if not select.select([self.reads], [], [], left)[0]:
                self.interrupt_peer()
                raise DeadlineExceeded(f"took more than {self.seconds:g} s")
            part = os.read(self.reads, 1 << 16)
            if not part:
                raise RemoteError("the program ended by itself")
            self.buffer += part
        text = bytes(self.buffer[:end]).decode("ascii", "replace")
        del self.buffer[: end + 1]
        return text


def reject(verb: str, *parts: object) -> Any:
    raise TypeError(f"{verb}: requests are not allowed on this side")


def raise_remote(kind: str, text: str) -> Any:
    """Raise the other side's exception as a subclass of the same builtin class, so that a test may expect it."""
    known = vars(builtins).get(kind)
    base = known if isinstance(known, type) and issubclass(known, Exception) else Exception
    if issubclass(base, StopIteration):  # would end a loop of the tests, and all(map(f, cases)) would be true
        base = RuntimeError
    error: Any = type(kind, (RemoteError, base), {"__str__": lambda self: text})
    raise error.__new__(error)


def builtin_base(error: BaseException) -> str:
    """The name of the nearest builtin class of an exception."""
    names = (kind.__name__ for kind in type(error).__mro__ if vars(builtins).get(kind.__name__) is kind)
    return next(names, "Exception")


def describe_error(error: BaseException) -> str:
    """An exception's class and message, with the line of the program that raised it."""
    if isinstance(error, RemoteError):
        return str(error)[: 2 * SHOWN]
    line, frame = None, error.__traceback__
    while frame is not None:
        line = frame.tb_lineno if frame.tb_frame.f_code.co_filename == "program.py" else line
        frame = frame.tb_next
    name = "timeout" if isinstance(error, DeadlineExceeded) else type(error).__name__
    try:
        text = f"{name}: {error}"
    except BaseException:  # the program's own __str__ may raise
        text = name
    return text[:SHOWN] + (f" (line {line} of the program)" if line else "")


def safe_repr(value: object) -> str:
    try:
        return repr(value)[:SHOWN]
    except BaseException as error:  # the program's own __repr__ may raise
        return f"<{type(value).__name__}, which cannot be shown: {describe_error(error)}>"
