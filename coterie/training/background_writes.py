"""Writes files in a thread while training goes on."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor


class BackgroundWrites:
    """Runs writes in order, in one thread. `flush` waits for all of them and raises the first error.

    A killed process loses pending writes; one that exits normally completes them.
    """

    def __init__(self) -> None:
        self.pending: list[Future[None]] = []
        self.pool = ThreadPoolExecutor(1, "episodes")  # its thread starts with the first write

    def submit(self, write: Callable[[], None]) -> None:
        self.pending.append(self.pool.submit(write))

    def flush(self) -> None:
        pending, self.pending = self.pending, []
        for write in pending:
            write.result()
