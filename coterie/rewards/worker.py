"""Call a function in another process, under a deadline that holds even if the function never returns."""

from __future__ import annotations

import asyncio
import atexit
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from multiprocessing import Pipe
from typing import Any

START_SECONDS = 120.0  # to start a process and import a function; not counted in a call's deadline
WORKERS = min(4, os.cpu_count() or 1)
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
            [sys.executable, "-P", "-m", "coterie.rewards.child", str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            env=environment(),
            stdin=subprocess.DEVNULL,
            stdout=2,  # a grader's prints must not mix with what we print
            start_new_session=True,  # a group to kill with its own children, and out of Ctrl-C's way
        )
        theirs.close()
        _workers.add(self)

    def call(self, name: str, arguments: tuple[Any, ...], options: dict[str, Any], deadline: float) -> Any:
        self.connection.send((name, arguments, options))
        kind, value = self._receive(name, START_SECONDS)
        if kind == "loaded":
            kind, value = self._receive(name, deadline)
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

    def _receive(self, name: str, seconds: float) -> tuple[str, Any]:
        try:
            if self.connection.poll(seconds):
                reply: tuple[str, Any] = self.connection.recv()
                return reply
        except (EOFError, OSError):
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(1)  # its end of the line closes a moment before its exit code is known
            self.kill()
            raise GraderFailed(f"{name}: its process died with exit code {self.process.returncode}") from None
        self.kill()
        raise GraderTimeout(f"{name} took more than {seconds:g} s and was killed")


# A thread for each process: it waits for the answer, so a pool outlives any one event loop.
_threads = ThreadPoolExecutor(WORKERS, thread_name_prefix="grader")
_workers: set[Worker] = set()


class _Own(threading.local):
    worker: Worker | None = None


_own = _Own()


def _call(name: str, arguments: tuple[Any, ...], options: dict[str, Any], deadline: float) -> Any:
    if _own.worker is None or _own.worker.process.poll() is not None:
        _own.worker = Worker()
    return _own.worker.call(name, arguments, options, deadline)


@atexit.register
def _stop() -> None:
    for worker in list(_workers):
        worker.kill()
