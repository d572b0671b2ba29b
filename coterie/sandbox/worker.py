"""One Python that waits for one job, runs it and is gone."""

from __future__ import annotations

import math
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import suppress

from coterie.sandbox.proc_usage import family, group, uses_more
from coterie.sandbox.record import Ended, Limits, Ran, how_it_ended

READY = b"ready\n"
START_SECONDS = 60.0
AROUND = 8  # processes that hold a job's namespaces, at most
TICK = 0.05  # seconds between looks at what no pipe tells


class SandboxBroken(RuntimeError):
    """A sandbox did not come up: nothing was run, and the job is not to blame."""


class Worker:
    """A process group that is started ahead of its job.

    `folder`: where a job without a file system of its own works; it is removed with the worker. `apart`: whether it has
    namespaces of its own.
    """

    def __init__(self, command: Sequence[str], environment: dict[str, str], folder: bool, apart: bool) -> None:
        self.apart = apart
        self.folder = tempfile.TemporaryDirectory(prefix="coterie-job-") if folder else None
        home = {"HOME": self.folder.name} if self.folder else {}
        self.process = subprocess.Popen(
            command,
            env={**environment, **home},
            cwd=self.folder.name if self.folder else None,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,  # a group to kill, and out of Ctrl-C's way
            bufsize=0,
        )

    def run(self, request: bytes, limits: Limits, stop: threading.Event) -> Ran:
        """Hand the job over and wait for its end, which is no later than its limits say."""
        self._wait_until_ready()
        started = time.monotonic()
        talk = Talk(self.process, request, limits.output)
        ended = self._listen(talk, started + limits.seconds, limits, stop)
        talk.close()
        self.close()
        stdout, stderr = (bytes(text[: limits.output]).decode("utf-8", "replace") for text in talk.heard)
        exit = self.process.returncode if self.process.returncode >= 0 else 128 - self.process.returncode
        return Ran(stdout, stderr, exit, ended or how_it_ended(exit, stderr), time.monotonic() - started, talk.cut)

    def close(self) -> None:
        """End it and all that it started. Under bubblewrap nothing survives its first process."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            assert pipe is not None
            pipe.close()
        if self.folder:
            self.folder.cleanup()

    def _wait_until_ready(self) -> None:
        """Starting takes long on a busy machine, which must not count as the job's time."""
        assert self.process.stdout is not None and self.process.stderr is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stdout, selectors.EVENT_READ)
            said = self.process.stdout.read(len(READY)) if selector.select(START_SECONDS) else None
        if said != READY:
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            last_words = self.process.stderr.read().decode("utf-8", "replace")
            self.close()
            raise SandboxBroken(f"a sandbox did not start: {last_words.strip() or 'it said nothing'}")

    def _listen(self, talk: Talk, until: float, limits: Limits, stop: threading.Event) -> Ended | None:
        """Let the job talk; why it was stopped, or None where it came to its end."""
        looked = time.monotonic()
        while talk.open:
            now = time.monotonic()
            if now >= until or stop.is_set():
                return "timeout"
            talk.go_on(min(until - now, TICK))
            if talk.cut:
                return "output"
            if self.process.poll() is not None:
                talk.go_on(0)  # what it left in the pipes; its children may hold them open for ever
                return None
            if now - looked > TICK:
                looked = now
                if too_much := self._uses_too_much(limits):
                    return too_much
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(max(until - time.monotonic(), 0))
        return "timeout" if self.process.returncode is None else None

    def _uses_too_much(self, limits: Limits) -> Ended | None:
        """What its processes use together: the limits that the kernel keeps are for each, and count none of root's.

        With namespaces of its own a job cannot leave its family; without them only its group is known, and a process
        that makes a session of its own is not in it."""
        most = limits.processes + AROUND if self.apart else limits.processes
        pids = (family if self.apart else group)(self.process.pid, most)
        if self.folder and len(pids) > most:
            return "processes"
        return "memory" if uses_more(pids, limits.memory) else None


class Talk:
    """What goes to a job and what comes from it, as much as the pipes take and no more than it may print."""

    def __init__(self, process: subprocess.Popen[bytes], request: bytes, most: int) -> None:
        assert process.stdin is not None and process.stdout is not None and process.stderr is not None
        self.stdin, self.outputs = process.stdin, (process.stdout, process.stderr)
        self.rest, self.most = memoryview(request), most
        self.heard = (bytearray(), bytearray())
        self.selector = selectors.DefaultSelector()
        self.selector.register(self.stdin, selectors.EVENT_WRITE)
        for pipe, text in zip(self.outputs, self.heard, strict=True):
            self.selector.register(pipe, selectors.EVENT_READ, text)
        for pipe in (self.stdin, *self.outputs):
            os.set_blocking(pipe.fileno(), False)
        # Its end is known tens of milliseconds before the kernel has taken down all that held the pipes.
        self.gone = os.pidfd_open(process.pid) if sys.platform == "linux" else None
        if self.gone is not None:
            self.selector.register(self.gone, selectors.EVENT_READ, ())

    @property
    def open(self) -> bool:
        """Whether anything can still be heard."""
        return any(not pipe.closed for pipe in self.outputs)

    def close(self) -> None:
        self.selector.close()
        if self.gone is not None:
            os.close(self.gone)

    @property
    def cut(self) -> bool:
        return any(len(text) > self.most for text in self.heard)

    def go_on(self, seconds: float) -> None:
        """Wait so long for something to happen, then move all that can be moved."""
        for key, _ in self.selector.select(seconds):
            if key.fileobj is self.stdin:
                self._write()
            elif key.fileobj in self.outputs:
                self._read(key.fileobj, key.data)

    def _write(self) -> None:
        try:
            self.rest = self.rest[os.write(self.stdin.fileno(), self.rest[: 1 << 16]) :]
        except BrokenPipeError:  # it does not read its input, as it may
            self.rest = self.rest[:0]
        if not self.rest:
            self.selector.unregister(self.stdin)
            self.stdin.close()

    def _read(self, pipe: object, text: bytearray) -> None:
        (pipe,) = (known for known in self.outputs if known is pipe)
        while len(text) <= self.most:
            try:
                part = os.read(pipe.fileno(), 1 << 16)
            except BlockingIOError:
                return
            if not part:
                self.selector.unregister(pipe)
                pipe.close()
                return
            text += part


def cpu_seconds(limits: Limits) -> int:
    """Of processor time, for each process; more than the clock's, which is the one to report."""
    return math.ceil(limits.seconds) + 1
