"""Call a builtin grader in a process that is forked for one answer: a hanging answer costs a process, not a place.

As many answers run at once as there are workers. One that has used more processor time than answers do gives up its
place and its priority, so that the next ones do not wait for its deadline.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from coterie.rewards.worker import START_SECONDS, WORKERS, GraderFailed, GraderTimeout, environment

AT_ONCE = 64  # answers, those that gave up their places included
PATIENCE = 0.3  # seconds of processor time; with more answers that hang, less
TICK = 0.05  # seconds between looks at a process
LATE = 10.0  # seconds for a process to be told dead; its own alarm ends it at the deadline
TICKS = os.sysconf("SC_CLK_TCK")


class OverLimits(Exception):
    """An answer needed more memory, recursion or processor time than answers may have. It is wrong by definition."""


async def call_forked(
    name: str,
    arguments: tuple[Any, ...],
    options: Mapping[str, Any],
    deadline: float,
    processor_seconds: int | None = None,
) -> Any:
    """What the function `module:name` returns; the deadline starts when its process does."""
    request = arguments, dict(options), deadline, processor_seconds
    return await asyncio.wrap_future(_threads.submit(_call, name, request))


class Places:
    """How many answers may run at once. Those that hang have given theirs up and are counted."""

    def __init__(self, count: int) -> None:
        self.free = threading.Semaphore(count)
        self.count, self.hanging = count, 0
        self.lock = threading.Lock()

    @contextmanager
    def one(self) -> Iterator[Place]:
        self.free.acquire()
        place = Place(self)
        try:
            yield place
        finally:
            place.leave()

    @property
    def patience(self) -> float:
        """A few that hang may be slow; many are an attack, and the time until all have started must stay short."""
        return PATIENCE / (1 + self.hanging / self.count)


class Place:
    """A place of one answer, until it ends or hangs."""

    def __init__(self, places: Places) -> None:
        self.places, self.hangs = places, False

    def give_up(self, pid: int) -> None:
        self.hangs = True
        with self.places.lock:
            self.places.hanging += 1
        with suppress(OSError):  # it is gone meanwhile
            os.setpriority(os.PRIO_PROCESS, pid, 19)
        self.places.free.release()

    def leave(self) -> None:
        if not self.hangs:
            self.places.free.release()
            return
        with self.places.lock:
            self.places.hanging -= 1


class Server:
    """The process that the answers to one grader are forked from: the less it has loaded, the sooner a fork is made."""

    def __init__(self, name: str) -> None:
        self.control, theirs = socket.socketpair()
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", "coterie.rewards.fork_server", str(theirs.fileno()), name],
            pass_fds=[theirs.fileno()],
            env=environment(),
            stdin=subprocess.DEVNULL,
            stdout=2,  # a grader's prints must not mix with what we print
            start_new_session=True,  # out of Ctrl-C's way
        )
        theirs.close()

    def connect(self) -> Connection:
        """A process for one call."""
        ours, theirs = Pipe()
        socket.send_fds(self.control, [b"."], [theirs.fileno()])
        theirs.close()
        return ours

    def close(self) -> None:
        """Its answers come to their own end: each has an alarm."""
        self.control.close()
        self.process.wait()


def _call(name: str, request: tuple[Any, ...]) -> Any:
    with _places.one() as place:
        connection = _connect(name)
        try:
            return _result(name, connection, request, place)
        except (EOFError, OSError) as error:
            if isinstance(error, GraderTimeout):
                raise
            raise GraderFailed(f"{name}: its process died") from None
        finally:
            connection.close()


def _connect(name: str) -> Connection:
    with _starting:
        if name not in _servers or _servers[name].process.poll() is not None:
            _servers[name] = Server(name)
        return _servers[name].connect()


def _result(name: str, connection: Connection, request: tuple[Any, ...], place: Place) -> Any:
    if not connection.poll(START_SECONDS):
        raise GraderTimeout(f"{name} was not loaded within {START_SECONDS:g} s")
    kind, value = connection.recv()
    if kind == "started":
        connection.send(request)
        _wait(name, connection, value, request[2], place)
        kind, value = connection.recv()
    if kind == "value":
        return value
    if kind == "over" or (kind, value) == ("killed", signal.SIGXCPU):
        raise OverLimits(name)
    if (kind, value) == ("killed", signal.SIGALRM):
        raise GraderTimeout(f"{name} took more than {request[2]:g} s and was killed")
    raise GraderFailed(f"{name} failed in its process: {value}")


def _wait(name: str, connection: Connection, pid: int, deadline: float, place: Place) -> None:
    """Until there is something to read; a process that has used up its patience gives up its place."""
    until = time.monotonic() + deadline + LATE
    while not connection.poll(TICK):
        if not place.hangs and _processor_seconds(pid) > place.places.patience:
            place.give_up(pid)
        if time.monotonic() > until:
            raise GraderTimeout(f"{name} took more than {deadline:g} s, and its process does not end")


def _processor_seconds(pid: int) -> float:
    """Not by the clock: on a busy machine an answer that waits for its turn does not hang."""
    with suppress(OSError):  # it is gone meanwhile
        user, system = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
        return (int(user) + int(system)) / TICKS
    return 0.0


_threads = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="forks")
_places = Places(WORKERS)
_starting = threading.Lock()
_servers: dict[str, Server] = {}


@atexit.register
def _stop() -> None:
    for server in _servers.values():
        server.close()
