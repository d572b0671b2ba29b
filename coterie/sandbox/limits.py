"""The limits of a sandboxed job, and its result."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from typing import Literal

# error: non-zero exit · timeout: out of wall-clock or CPU time · memory, processes, output: over that limit ·
# killed: by a signal, its own or the kernel's
Status = Literal["ok", "error", "timeout", "memory", "processes", "output", "killed"]
# How the traceback of a refused fork or thread begins.
REFUSED = ("BlockingIOError: [Errno 11]", "RuntimeError: can't start new thread")
LAST_LINES = 256  # of stderr that are searched


@dataclass(frozen=True)
class Limits:
    """What one job may use."""

    seconds: float = 10.0  # wall-clock time, and CPU time of each process
    memory: int = 1 << 30  # bytes: address space of each process, and resident memory of all together
    processes: int = 32  # including threads
    disk: int = 256 << 20  # bytes in its folder
    output: int = 1 << 20  # bytes of stdout, and of stderr


@dataclass(frozen=True)
class RunResult:
    """What a job printed and how it ended."""

    stdout: str
    stderr: str
    exit_code: int  # as in a shell: 128 + n if signal n killed it
    status: Status
    seconds: float
    truncated: bool = False  # it printed more than `limits.output`

    @property
    def ok(self) -> bool:
        return self.status == "ok"


def status_of(exit_code: int, stderr: str) -> Status:
    """Classify how a job ended by its exit code and the last lines of stderr."""
    if exit_code == 0:
        return "ok"
    *before, last = stderr.rstrip().split("\n")[-LAST_LINES:]
    if "MemoryError" in last:
        return "memory"
    # EAGAIN from fork or pthread_create. Several processes may fail at once and interleave their tracebacks.
    if any(line.startswith(REFUSED) for line in (*before, last)):
        return "processes"
    if exit_code == 128 + signal.SIGXCPU:
        return "timeout"
    return "killed" if 128 < exit_code <= 128 + signal.SIGRTMAX else "error"
