"""Call a function in another process, under a deadline that holds even if the function never returns.

As many calls run at once as there are workers. One that only waits, as for a server that hangs, gives up its place to
the next, so those behind it do not wait for its deadline.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from multiprocessing import Pipe
from pathlib import Path
from typing import Any

START_SECONDS = 120.0  # to start a process and import a function; not counted in a call's deadline
WORKERS = min(4, os.cpu_count() or 1)
AT_ONCE = 64  # calls, those that only wait included
IDLE = 1.0  # seconds without processor time after which a call only waits
BUSY = 0.05  # seconds of processor time that count as work
TICK = 0.1  # seconds between looks at a process
TICKS = os.sysconf("SC_CLK_TCK")
TIMEOUTS = "grader_timeouts"  # the metric of an episode that counts answers whose grader had to be killed


class GraderTimeout(TimeoutError):
    """A call overran its deadline; its process was killed."""


class GraderFailed(RuntimeError):
    """A call raised, or its process died. The message has the traceback of the process."""


async def call(name: str, arguments: tuple[Any, ...], options: Mapping[str, Any], deadline: float) -> Any:
    """What `module:name` or `file.py:name` returns; waits for a free worker before the deadline starts."""
    return await asyncio.wrap_future(_threads.submit(_call, name, arguments, dict(options), deadline))


def environment() -> dict[str, str]:
    """With the parent's path, so that a child finds the same packages; -P keeps the current folder out."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


class Worker:
    """One process, started when first needed and replaced after it was killed.

    Not `multiprocessing`'s spawn, which runs the caller's main script again in the child: with the
    `coterie` command that would import torch into every grader. POSIX only, as it passes a socket on.
    """

    def __init__(self) -> None:
        self.connection, theirs = Pipe()
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", "coterie.rewards.worker_process", str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            env=environment(),
            stdin=subprocess.DEVNULL,
            stdout=2,  # a grader's prints must not mix with what we print
            start_new_session=True,  # a group to kill with its own children, and out of Ctrl-C's way
        )
        theirs.close()
        _workers.add(self)

    def call(
        self,
        name: str,
        arguments: tuple[Any, ...],
        options: dict[str, Any],
        deadline: float,
        waits: Callable[[], None] = lambda: None,
    ) -> Any:
        """What the function returns. `waits` is called once the process only waits."""
        from coterie.sandbox import unprotected  # not at the top: grading processes import this file

        self.connection.send((name, arguments, options, unprotected()))
        kind, value = self._receive(name, START_SECONDS)
        if kind == "loaded":
            kind, value = self._receive(name, deadline, waits)
        if kind == "failed":
            raise GraderFailed(f"{name} failed in its process:\n{value}")
        return value

    def kill(self) -> None:
        """End the process and what it started."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        self.connection.close()
        _workers.discard(self)

    def _receive(self, name: str, seconds: float, waits: Callable[[], None] = lambda: None) -> tuple[str, Any]:
        try:
            if self._ready(seconds, waits):
                reply: tuple[str, Any] = self.connection.recv()
                return reply
        except (EOFError, OSError):
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(1)  # its end of the line closes a moment before its exit code is known
            self.kill()
            raise GraderFailed(f"{name}: its process died with exit code {self.process.returncode}") from None
        self.kill()
        raise GraderTimeout(f"{name} took more than {seconds:g} s and was killed")

    def _ready(self, seconds: float, waits: Callable[[], None]) -> bool:
        """Whether there is something to read in time."""
        end, used, worked = time.monotonic() + seconds, 0.0, time.monotonic()
        while (left := end - time.monotonic()) > 0:
            if self.connection.poll(min(TICK, left)):
                return True
            if (more := processor_seconds(self.process.pid)) > used + BUSY:
                used, worked = more, time.monotonic()
            elif time.monotonic() > worked + IDLE:
                waits()
        return self.connection.poll(0)


def processor_seconds(first: int) -> float:
    """What a process and all that came of it have used so far."""
    from coterie.sandbox.proc_usage import family  # not at the top: grading processes import this file, and never ask

    if sys.platform != "linux":
        return time.monotonic()  # nobody tells, so it may be at work
    total = 0
    for pid in family(first, AT_ONCE):
        with suppress(OSError):  # it is gone meanwhile
            user, system = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
            total += int(user) + int(system)
    return total / TICKS


# A thread for each call: it waits for the answer, so the processes outlive any one event loop.
_threads = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="grader")
_places = threading.Semaphore(WORKERS)
_workers: set[Worker] = set()
_free: list[Worker] = []


def _call(name: str, arguments: tuple[Any, ...], options: dict[str, Any], deadline: float) -> Any:
    _places.acquire()
    leave = _once(_places.release)
    worker = _free_worker()
    try:
        return worker.call(name, arguments, options, deadline, leave)
    finally:
        _put_back(worker)
        leave()


def _free_worker() -> Worker:
    with suppress(IndexError):
        while (worker := _free.pop()).process.poll() is None:
            return worker
    return Worker()


def _put_back(worker: Worker) -> None:
    """For the next call; no more are kept than run at once, for each has loaded what a user's file imports."""
    if worker.process.poll() is None and len(_free) < WORKERS:
        _free.append(worker)
    else:
        worker.kill()


def _once(function: Callable[[], None]) -> Callable[[], None]:
    """A function that does something the first time only."""
    left = [function]
    return lambda: left.pop()() if left else None


@atexit.register
def _stop() -> None:
    for worker in list(_workers):
        worker.kill()
