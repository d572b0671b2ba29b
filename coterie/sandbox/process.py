"""One sandboxed Python process: started ahead of its job, runs it under a deadline, is killed with its children."""

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

from coterie.sandbox.limits import Limits, RunResult, Status, status_of
from coterie.sandbox.proc_usage import process_group, process_tree, uses_more_memory

READY = b"ready\n"
START_SECONDS = 60.0
WRAPPERS = 8  # processes of bwrap or unshare around a job, at most
TICK = 0.05  # seconds between checks of memory and processes


class SandboxBroken(RuntimeError):
    """The sandbox did not start. The job did not run, so this says nothing about it."""


class SandboxProcess:
    """A process group that runs one job.

    `folder`: create a temporary working folder, for a job without a private file system. `isolated`: the command starts
    the job in its own namespaces.
    """

    def __init__(self, command: Sequence[str], environment: dict[str, str], folder: bool, isolated: bool) -> None:
        self.isolated = isolated
        self.folder = tempfile.TemporaryDirectory(prefix="coterie-job-") if folder else None
        home = {"HOME": self.folder.name} if self.folder else {}
        self.process = subprocess.Popen(
            command,
            env={**environment, **home},
            cwd=self.folder.name if self.folder else None,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,  # a process group to kill; Ctrl-C does not reach it
            bufsize=0,
        )

    def run(self, request: bytes, limits: Limits, cancelled: threading.Event) -> RunResult:
        """Send the job and wait until it ends or is killed at a limit."""
        self._wait_until_ready()
        started = time.monotonic()
        pipes = Pipes(self.process, request, limits.output)
        stopped = self._communicate(pipes, started + limits.seconds, limits, cancelled)
        pipes.close()
        self.close()
        stdout, stderr = (bytes(text[: limits.output]).decode("utf-8", "replace") for text in pipes.received)
        code = self.process.returncode if self.process.returncode >= 0 else 128 - self.process.returncode
        seconds = time.monotonic() - started
        return RunResult(stdout, stderr, code, stopped or status_of(code, stderr), seconds, pipes.truncated)

    def close(self) -> None:
        """Kill the process group. Under bubblewrap, the PID namespace ends with it."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            assert pipe is not None
            pipe.close()
        if self.folder:
            self.folder.cleanup()

    def _wait_until_ready(self) -> None:
        """Wait until the interpreter has started. Slow on a busy machine; must not count as the job's time."""
        assert self.process.stdout is not None and self.process.stderr is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stdout, selectors.EVENT_READ)
            line = self.process.stdout.read(len(READY)) if selector.select(START_SECONDS) else None
        if line != READY:
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            stderr = self.process.stderr.read().decode("utf-8", "replace")
            self.close()
            raise SandboxBroken(f"a sandbox did not start: {stderr.strip() or 'no output on stderr'}")

    def _communicate(self, pipes: Pipes, deadline: float, limits: Limits, cancelled: threading.Event) -> Status | None:
        """Pump stdin, stdout and stderr until the job ends; returns the limit that it broke, or None."""
        checked = time.monotonic()
        while pipes.open:
            now = time.monotonic()
            if now >= deadline or cancelled.is_set():
                return "timeout"
            pipes.transfer(min(deadline - now, TICK))
            if pipes.truncated:
                return "output"
            if self.process.poll() is not None:
                pipes.transfer(0)  # what is left in the pipes; its children may hold them open for ever
                return None
            if now - checked > TICK:
                checked = now
                if over := self._over_limit(limits):
                    return over
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(max(deadline - time.monotonic(), 0))
        return "timeout" if self.process.returncode is None else None

    def _over_limit(self, limits: Limits) -> Status | None:
        """Check what all processes use together: rlimits are per process, and RLIMIT_NPROC does not bind root.

        In a PID namespace a job cannot leave its process tree. Without one only its process group is known, and a
        process that calls setsid leaves it."""
        most = limits.processes + WRAPPERS if self.isolated else limits.processes
        pids = (process_tree if self.isolated else process_group)(self.process.pid, most)
        if self.folder and len(pids) > most:
            return "processes"
        return "memory" if uses_more_memory(pids, limits.memory) else None


class Pipes:
    """Non-blocking stdin, stdout and stderr of a job; reads at most `most` bytes of each output."""

    def __init__(self, process: subprocess.Popen[bytes], request: bytes, most: int) -> None:
        assert process.stdin is not None and process.stdout is not None and process.stderr is not None
        self.stdin, self.outputs = process.stdin, (process.stdout, process.stderr)
        self.unsent, self.most = memoryview(request), most
        self.received = (bytearray(), bytearray())
        self.selector = selectors.DefaultSelector()
        self.selector.register(self.stdin, selectors.EVENT_WRITE)
        for pipe, text in zip(self.outputs, self.received, strict=True):
            self.selector.register(pipe, selectors.EVENT_READ, text)
        for pipe in (self.stdin, *self.outputs):
            os.set_blocking(pipe.fileno(), False)
        # Readable when the process exits, tens of milliseconds before the kernel has closed its pipes.
        self.pidfd = os.pidfd_open(process.pid) if sys.platform == "linux" else None
        if self.pidfd is not None:
            self.selector.register(self.pidfd, selectors.EVENT_READ, ())

    @property
    def open(self) -> bool:
        """True while there may be more output."""
        return any(not pipe.closed for pipe in self.outputs)

    def close(self) -> None:
        self.selector.close()
        if self.pidfd is not None:
            os.close(self.pidfd)

    @property
    def truncated(self) -> bool:
        return any(len(text) > self.most for text in self.received)

    def transfer(self, seconds: float) -> None:
        """Wait up to `seconds` for a pipe to be ready, then write and read without blocking."""
        for key, _ in self.selector.select(seconds):
            if key.fileobj is self.stdin:
                self._write()
            elif key.fileobj in self.outputs:
                self._read(key.fileobj, key.data)

    def _write(self) -> None:
        try:
            self.unsent = self.unsent[os.write(self.stdin.fileno(), self.unsent[: 1 << 16]) :]
        except BrokenPipeError:  # a job need not read its stdin
            self.unsent = self.unsent[:0]
        if not self.unsent:
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


def cpu_limit(limits: Limits) -> int:
    """RLIMIT_CPU of each process: above the wall-clock limit, so that the latter is reported."""
    return math.ceil(limits.seconds) + 1
