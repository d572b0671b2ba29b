"""Ctrl-C, SIGTERM and SIGHUP end a run after its step, so that a preempted or interrupted run is saved."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from coterie.training.loop import Run

STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def stop_after_step(run: Run) -> Iterator[None]:
    """The first signal ends the run after its step; a second one ends it at once. Under nohup SIGHUP stays ignored."""
    terminals = [descriptor for descriptor in (1, 2) if os.isatty(descriptor)]

    def stop(number: int, frame: FrameType | None) -> None:
        if number == signal.SIGHUP:
            _let_go_of(terminals)
        second, run.stopping, run.signal = run.stopping, True, number
        if second:
            raise KeyboardInterrupt
        if run.processes.first:
            print(f"\n{told(number)}: finishing this step, then saving; once more stops at once", file=sys.stderr)

    before = {number: signal.getsignal(number) for number in STOPPING}
    ignored = {signal.SIGHUP} if before[signal.SIGHUP] is signal.SIG_IGN else set()
    for number in set(STOPPING) - ignored:
        signal.signal(number, stop)
    try:
        yield
    finally:
        for number in set(STOPPING) - ignored:
            signal.signal(number, before[number])


def told(number: int) -> str:
    """A signal as people call it; 0 where it was no signal."""
    names = {0: "request", signal.SIGINT: "Ctrl-C", signal.SIGTERM: "SIGTERM", signal.SIGHUP: "SIGHUP"}
    return names[number]


def _let_go_of(terminals: list[int]) -> None:
    """Send output nowhere: to write to a terminal that was closed is an error, which would end the run unsaved."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for descriptor in terminals:
        os.dup2(nowhere, descriptor)
    os.close(nowhere)
