"""Graceful shutdown: Ctrl-C, SIGTERM (preemption) and SIGHUP stop a run after its step and save a checkpoint."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Protocol

from coterie.learners.distributed import Processes

STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Stoppable(Protocol):
    """A run that checks `stopping` between its steps."""

    stopping: bool
    signal: int  # the signal that requested the stop; 0: none
    processes: Processes


@contextmanager
def stop_after_step(run: Stoppable) -> Iterator[None]:
    """The first signal stops the run after its step, a second one at once. Under nohup SIGHUP stays ignored."""
    terminals = [descriptor for descriptor in (1, 2) if os.isatty(descriptor)]

    def stop(number: int, frame: FrameType | None) -> None:
        if number == signal.SIGHUP:
            _detach(terminals)
        second, run.stopping, run.signal = run.stopping, True, number
        if second:
            raise KeyboardInterrupt
        if run.processes.is_main:
            then = "finishing this step, then saving a checkpoint; a second signal stops at once"
            print(f"\n{signal_name(number)}: {then}", file=sys.stderr)

    before = {number: signal.getsignal(number) for number in STOPPING}
    ignored = {signal.SIGHUP} if before[signal.SIGHUP] is signal.SIG_IGN else set()
    for number in set(STOPPING) - ignored:
        signal.signal(number, stop)
    try:
        yield
    finally:
        for number in set(STOPPING) - ignored:
            signal.signal(number, before[number])


def signal_name(number: int) -> str:
    """The usual name of a signal; 0: a request by the program."""
    names = {0: "request", signal.SIGINT: "Ctrl-C", signal.SIGTERM: "SIGTERM", signal.SIGHUP: "SIGHUP"}
    return names[number]


def _detach(terminals: list[int]) -> None:
    """Redirect output to /dev/null: writing to a closed terminal raises, and the run would end without a checkpoint."""
    devnull = os.open(os.devnull, os.O_WRONLY)
    for descriptor in terminals:
        os.dup2(devnull, descriptor)
    os.close(devnull)
