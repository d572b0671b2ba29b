"""Measures time and peak memory, and prints them beside a baseline's."""

from __future__ import annotations

import ctypes
import gc
import json
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import rich
import torch

from coterie.console import table
from coterie.files import write_atomic

Timings = list["Timing"]
Way = Callable[[], int]  # does the work and returns its number of tokens


@dataclass(frozen=True)
class Timing:
    """One measurement of one workload."""

    seconds: float
    tokens: int
    megabytes: float  # peak memory above the start

    @property
    def speed(self) -> float:
        return self.tokens / self.seconds


@dataclass
class Row:
    """One workload, run by Coterie and by a baseline; `theirs` is None if the baseline is not installed."""

    work: str
    ours: str
    others: str
    mine: Timings
    theirs: Timings | None
    notes: dict[str, Any] = field(default_factory=dict)  # further numbers

    @property
    def ratios(self) -> list[float]:
        """Our speed over the baseline's, for each repeat."""
        return [a.speed / b.speed for a, b in zip(self.mine, self.theirs or (), strict=False)]

    def cells(self) -> dict[str, Any]:
        both = [self.mine] if self.theirs is None else [self.mine, self.theirs]
        return {
            "work": self.work,
            "against": f"{self.ours} / {self.others}",
            "tok/s": " / ".join(f"{median(t.speed for t in some):.0f}" for some in both),
            "peak MB": " / ".join(f"{median(t.megabytes for t in some):.0f}" for some in both),
            "times as fast": spread(self.ratios) if self.theirs is not None else "not installed",
            **{key: f"{value:.3g}" if isinstance(value, float) else str(value) for key, value in self.notes.items()},
        }


def median(numbers: Iterator[float] | Sequence[float]) -> float:
    return statistics.median(numbers)


def spread(numbers: Sequence[float]) -> str:
    return f"{median(numbers):.2f} ({min(numbers):.2f}–{max(numbers):.2f})"


def in_turn(mine: Way, theirs: Way | None, repeats: int, device: torch.device) -> tuple[Timings, Timings | None]:
    """Run both once as a warm-up, then alternately, so that a change in the machine's speed affects both.

    The warm-up is the full workload: `generate` allocates GPU memory at every new length, which makes its first run
    more than twice as long."""
    ways = [way for way in (mine, theirs) if way is not None]
    for way in ways:
        way()
    taken: list[Timings] = [[] for _ in ways]
    for _ in range(repeats):
        for way, timings in zip(ways, taken, strict=True):
            timings.append(timed(way, device))
    return taken[0], taken[1] if theirs is not None else None


def timed(way: Way, device: torch.device) -> Timing:
    with peak_of(device) as peak:
        started = time.perf_counter()
        tokens = way()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        seconds = time.perf_counter() - started
    return Timing(seconds, tokens, peak[0])


def show(title: str, rows: Sequence[Row], out: Path | None, **more: Sequence[float]) -> None:
    """Print the table; write every number, and `more`, to a file."""
    rich.print(table(title, [row.cells() for row in rows]))
    if out is not None:
        write_atomic(out, json.dumps({"title": title, "rows": [as_json(row) for row in rows], **more}, indent=1))


def as_json(row: Row) -> Mapping[str, Any]:
    return asdict(row) | {"ratios": row.ratios}


def peak_of(device: torch.device) -> AbstractContextManager[list[float]]:
    """Peak memory inside the block above the start, in MB."""
    return cuda_peak(device) if device.type == "cuda" else resident_peak()


@contextmanager
def cuda_peak(device: torch.device) -> Iterator[list[float]]:
    """Peak memory allocated by tensors."""
    gc.collect()
    torch.cuda.synchronize(device)
    before = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    peak = [0.0]
    try:
        yield peak
    finally:
        peak[0] = (torch.cuda.max_memory_allocated(device) - before) / 1e6


@contextmanager
def resident_peak() -> Iterator[list[float]]:
    """Peak resident set size, read every 10 ms."""
    peak, done, page = [0.0], threading.Event(), 4096 / 1e6
    statm = Path("/proc/self/statm")
    gc.collect()
    if sys.platform == "linux":
        ctypes.CDLL("libc.so.6").malloc_trim(0)  # return what an earlier block freed
    before = int(statm.read_text().split()[1]) if statm.exists() else 0

    def watch() -> None:
        while not done.wait(0.01):
            peak[0] = max(peak[0], (int(statm.read_text().split()[1]) - before) * page)

    watcher = threading.Thread(target=watch, daemon=True)
    if statm.exists():
        watcher.start()
    try:
        yield peak
    finally:
        done.set()
        if watcher.is_alive():
            watcher.join()
