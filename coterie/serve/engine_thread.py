"""A thread with its own event loop for the engine, so that decode steps do not block the server's event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")


class QueueFull(Exception):
    """More requests are waiting or running than the queue holds."""


class EngineThread:
    """Runs coroutines on its loop, at most `limit` at once; more are refused. Cancelling a future cancels its work."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.running = 0  # submitted and not done; only the server's loop and done callbacks change it
        self._lock = threading.Lock()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="engine", daemon=True)
        self._thread.start()

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Start some work; raises QueueFull if there is too much already."""
        with self._lock:
            if self.running >= self.limit:
                work.close()
                raise QueueFull(f"{self.running} requests are waiting or running, and at most {self.limit} may")
            self.running += 1
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        future.add_done_callback(self._done)
        return future

    def close(self) -> None:
        """End the thread; what still runs is abandoned."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def _done(self, future: Future[Any]) -> None:
        with self._lock:
            self.running -= 1
