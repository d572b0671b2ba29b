"""What a job may use, and what came of it."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from typing import Literal

# error: it ended by itself, badly · timeout: its time or its processor time was over · memory, processes, output: it
# asked for more than it may have · killed: by a signal, its own or the kernel's
Ended = Literal["ok", "error", "timeout", "memory", "processes", "output", "killed"]
REFUSED = ("BlockingIOError: [Errno 11]", "RuntimeError: can't start new thread")
LATELY = 256  # lines


@dataclass(frozen=True)
class Limits:
    """What one job may use."""

    seconds: float = 10.0  # by the clock, and of processor time for each process
    memory: int = 1 << 30  # bytes: of address space for each process, and in use by all together
    processes: int = 32  # threads too
    disk: int = 256 << 20  # bytes in its folder
    output: int = 1 << 20  # bytes of stdout and of stderr


@dataclass(frozen=True)
class Ran:
    """What a job printed and how it ended."""

    stdout: str
    stderr: str
    exit: int  # as a shell says it: 128 + n when signal n ended it
    ended: Ended
    seconds: float
    cut: bool = False  # it printed more than is shown here

    @property
    def ok(self) -> bool:
        return self.ended == "ok"


def how_it_ended(exit: int, stderr: str) -> Ended:
    """What an exit code and the last words mean."""
    if exit == 0:
        return "ok"
    *before, last = stderr.rstrip().split("\n")[-LATELY:]
    if "MemoryError" in last:
        return "memory"
    # EAGAIN: how a fork and a thread are refused. Many may be at once, and then all of them speak together.
    if any(line.startswith(REFUSED) for line in (*before, last)):
        return "processes"
    if exit == 128 + signal.SIGXCPU:
        return "timeout"
    return "killed" if 128 < exit <= 128 + signal.SIGRTMAX else "error"
