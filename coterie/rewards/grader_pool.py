"""Call graders in child processes that can be killed, so that a deadline holds even if a grader never returns.

`call` runs a user's reward function in a pool of worker processes; a worker that was killed or died is restarted.
`call_forked` runs a builtin grader in a process forked for one answer from a fork server (`fork_server.py`).
At most WORKERS calls run at once. A call that hangs gives up its slot, so that others do not wait for its deadline:
a user's function after a second without CPU time (it waits, for example for a server), a builtin grader after more
CPU time than answers need.
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
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any

from coterie.errors import UserError

START_SECONDS = 120.0  # to start a process and import a function; not counted in a call's deadline
WORKERS = min(4, os.cpu_count() or 1)
MAX_CALLS = 64  # at once, including those that gave up their slots
IDLE = 1.0  # seconds without CPU time after which a call counts as waiting and gives up its slot
BUSY = 0.05  # seconds of CPU time that count as work
SLOT_CPU_SECONDS = 0.3  # CPU time that a builtin grader may use before it gives up its slot
KILL_SECONDS = 10.0  # for the kernel to end a forked process after its alarm
TICK = 0.05  # seconds between samples of CPU time
TIMEOUTS = "grader_timeouts"  # episode metric: answers whose grader was killed at its deadline


class GraderTimeout(UserError, TimeoutError):
    """A call overran its deadline; its process was killed."""


class GraderFailed(UserError, RuntimeError):
    """A call raised, or its process died. The message has the child's traceback."""


class OverLimits(Exception):
    """An answer needed more memory, recursion or CPU time than graders allow. It counts as wrong."""


class Slots:
    """Limits how many calls run at once."""

    def __init__(self, count: int, name: str) -> None:
        self.free = threading.Semaphore(count)
        self.count, self.hanging = count, 0
        self.lock = threading.Lock()
        # A thread per call waits for its process, so that processes outlive any one event loop.
        self.threads = ThreadPoolExecutor(MAX_CALLS, thread_name_prefix=name)

    async def run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call `function(slot, *arguments)` in a thread, once there is a free slot."""
        return await asyncio.wrap_future(self.threads.submit(self._run, function, *arguments))

    def _run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        self.free.acquire()
        slot = Slot(self)
        try:
            return function(slot, *arguments)
        finally:
            slot.release()

    @property
    def cpu_seconds(self) -> float:
        """CPU time after which a call gives up its slot. Less if many calls hang: they may be an attack, which must not
        delay the others."""
        return SLOT_CPU_SECONDS / (1 + self.hanging / self.count)


class Slot:
    """The slot of one call, until the call ends or gives it up."""

    def __init__(self, slots: Slots) -> None:
        self.slots, self.given_up = slots, False

    def give_up(self) -> None:
        if not self.given_up:
            self.given_up = True
            with self.slots.lock:
                self.slots.hanging += 1
            self.slots.free.release()

    def release(self) -> None:
        if not self.given_up:
            self.slots.free.release()
            return
        with self.slots.lock:
            self.slots.hanging -= 1


def spawn(module: str, fd: int, *arguments: str) -> subprocess.Popen[bytes]:
    """Start `python -m module FD …` with the parent's sys.path; -P keeps the current folder out of it.

    Not `multiprocessing` spawn, which runs the caller's main script again in the child: for the `coterie` command that
    would import torch into every grader. POSIX only, because the child inherits a file descriptor.
    """
    return subprocess.Popen(
        [sys.executable, "-P", "-m", module, str(fd), *arguments],
        pass_fds=[fd],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        stdin=subprocess.DEVNULL,
        stdout=2,  # a grader's prints must not mix with our stdout
        start_new_session=True,  # a process group to kill with its children; Ctrl-C does not reach it
    )


def wait_readable(connection: Connection, seconds: float, pid: int, sample: Callable[[float], None]) -> bool:
    """Wait until the connection can be read; False after `seconds`. `sample` gets the CPU time used so far.

    CPU time, not wall-clock time: on a busy machine a process may wait long for a core without hanging.
    """
    # Imported here: child processes import this module and never wait.
    from coterie.sandbox.proc_usage import cpu_seconds, process_tree

    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        if connection.poll(min(TICK, left)):
            return True
        if sys.platform == "linux":  # elsewhere CPU time is not known
            sample(cpu_seconds(process_tree(pid, MAX_CALLS)))
    return connection.poll(0)


# --- users' reward functions: a pool of workers ---


async def call(name: str, arguments: tuple[Any, ...], options: Mapping[str, Any], deadline: float) -> Any:
    """Call `module:name` or `file.py:name` in a worker; the deadline starts when a worker has loaded the function."""
    return await _worker_slots.run(_call_worker, name, arguments, dict(options), deadline)


class Worker:
    """One worker process. It serves many calls and is killed at the first that overruns its deadline."""

    def __init__(self) -> None:
        self.connection, theirs = Pipe()
        self.process = spawn("coterie.rewards.worker_process", theirs.fileno())
        theirs.close()
        _workers.add(self)

    def call(
        self,
        name: str,
        arguments: tuple[Any, ...],
        options: dict[str, Any],
        deadline: float,
        on_idle: Callable[[], None] = lambda: None,
    ) -> Any:
        """Call the function in the process. `on_idle` is called while it uses no CPU time."""
        from coterie.sandbox import unprotected  # imported here: child processes import this module

        self.connection.send((name, arguments, options, unprotected()))
        kind, value = self._receive(name, START_SECONDS)
        if kind == "loaded":
            kind, value = self._receive(name, deadline, on_idle)
        if kind == "failed":
            raise GraderFailed(f"{name} failed in its process:\n{value}")
        return value

    def kill(self) -> None:
        """Kill the process and its children."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        self.connection.close()
        _workers.discard(self)

    def _receive(self, name: str, seconds: float, on_idle: Callable[[], None] = lambda: None) -> tuple[str, Any]:
        try:
            if wait_readable(self.connection, seconds, self.process.pid, _when_idle(on_idle)):
                reply: tuple[str, Any] = self.connection.recv()
                return reply
        except (EOFError, OSError):
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(1)  # its socket closes a moment before its exit code is known
            self.kill()
            raise GraderFailed(f"{name}: its process died with exit code {self.process.returncode}") from None
        self.kill()
        raise GraderTimeout(f"{name} took more than {seconds:g} s and was killed")


def _when_idle(on_idle: Callable[[], None]) -> Callable[[float], None]:
    """Turn samples of CPU time into calls of `on_idle`."""
    used, worked = 0.0, time.monotonic()

    def sample(cpu: float) -> None:
        nonlocal used, worked
        if cpu > used + BUSY:
            used, worked = cpu, time.monotonic()
        elif time.monotonic() > worked + IDLE:
            on_idle()

    return sample


def _call_worker(slot: Slot, name: str, arguments: tuple[Any, ...], options: dict[str, Any], deadline: float) -> Any:
    worker = _free_worker()
    try:
        return worker.call(name, arguments, options, deadline, slot.give_up)
    finally:
        _put_back(worker)


def _free_worker() -> Worker:
    """A living worker, or a new one: here workers that were killed or died are restarted."""
    with suppress(IndexError):
        while (worker := _free.pop()).process.poll() is None:
            return worker
    return Worker()


def _put_back(worker: Worker) -> None:
    """Keep up to WORKERS idle workers: a new one would have to import the user's file again."""
    if worker.process.poll() is None and len(_free) < WORKERS:
        _free.append(worker)
    else:
        worker.kill()


# --- builtin graders: a fork server per grader, a fork per answer ---


async def call_forked(
    name: str, arguments: tuple[Any, ...], options: Mapping[str, Any], deadline: float, cpu_seconds: int | None = None
) -> Any:
    """Call `module:name` in a process of its own; the deadline starts when the process does."""
    return await _fork_slots.run(_call_fork, name, (arguments, dict(options), deadline, cpu_seconds))


class ForkServer:
    """The process from which one grader's answers are forked. One per grader: the less it has loaded, the faster it
    forks."""

    def __init__(self, name: str) -> None:
        self.control, theirs = socket.socketpair()
        self.process = spawn("coterie.rewards.fork_server", theirs.fileno(), name)
        theirs.close()

    def fork(self) -> Connection:
        """A connection to a new process for one call."""
        ours, theirs = Pipe()
        socket.send_fds(self.control, [b"."], [theirs.fileno()])
        theirs.close()
        return ours

    def close(self) -> None:
        """Forked processes end by themselves: each has an alarm."""
        self.control.close()
        self.process.wait()


def _call_fork(slot: Slot, name: str, request: tuple[Any, ...]) -> Any:
    connection = _fork(name)
    try:
        return _result(slot, name, connection, request)
    except (EOFError, OSError) as error:
        if isinstance(error, GraderTimeout):
            raise
        raise GraderFailed(f"{name}: its process died") from None
    finally:
        connection.close()


def _fork(name: str) -> Connection:
    with _starting:
        if name not in _servers or _servers[name].process.poll() is not None:
            _servers[name] = ForkServer(name)
        return _servers[name].fork()


def _result(slot: Slot, name: str, connection: Connection, request: tuple[Any, ...]) -> Any:
    if not connection.poll(START_SECONDS):
        raise GraderTimeout(f"{name} was not loaded within {START_SECONDS:g} s")
    kind, value = connection.recv()
    deadline = request[2]
    if kind == "started":
        connection.send(request)
        if not wait_readable(connection, deadline + KILL_SECONDS, value, _when_slow(slot, value)):
            raise GraderTimeout(f"{name} took more than {deadline:g} s, and its process does not end")
        kind, value = connection.recv()
    if kind == "value":
        return value
    if kind == "over" or (kind, value) == ("killed", signal.SIGXCPU):
        raise OverLimits(name)
    if (kind, value) == ("killed", signal.SIGALRM):
        raise GraderTimeout(f"{name} took more than {deadline:g} s and was killed")
    raise GraderFailed(f"{name} failed in its process: {value}")


def _when_slow(slot: Slot, pid: int) -> Callable[[float], None]:
    """Lower the priority of a process that uses much CPU time, and give up its slot."""

    def sample(cpu: float) -> None:
        if not slot.given_up and cpu > slot.slots.cpu_seconds:
            with suppress(OSError):  # it has exited
                os.setpriority(os.PRIO_PROCESS, pid, 19)
            slot.give_up()

    return sample


_worker_slots = Slots(WORKERS, "grader")
_workers: set[Worker] = set()
_free: list[Worker] = []
_fork_slots = Slots(WORKERS, "forks")
_starting = threading.Lock()
_servers: dict[str, ForkServer] = {}


@atexit.register
def _stop() -> None:
    for worker in list(_workers):
        worker.kill()
    for server in _servers.values():
        server.close()
