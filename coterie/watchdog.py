"""The watchdog of the event loop: interrupts code that blocks it. Also threads that may never return."""

from __future__ import annotations

import asyncio
import contextvars
import signal
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

T = TypeVar("T")

_pauses = 0


@contextmanager
def watchdog_paused() -> Iterator[None]:
    """Pause the watchdog, for engines: a forward pass may block the event loop for any time."""
    global _pauses
    _pauses += 1
    try:
        yield
    finally:
        _pauses -= 1


async def run_with_watchdog(work: Awaitable[T], seconds: float) -> T:
    """Await `work`. A task that blocks the event loop for up to twice `seconds` gets a TimeoutError where it is.

    A heartbeat task restarts a SIGALRM timer; if the event loop is blocked, the alarm fires and raises in the code that
    blocks it. Signals reach the main thread only, so elsewhere there is no watchdog.
    """
    if threading.current_thread() is not threading.main_thread():
        return await work
    suspect: asyncio.Task[Any] | None = None

    def interrupt(*_: Any) -> None:
        nonlocal suspect
        task = asyncio.current_task()
        if task is None or _pauses:
            return
        if task is suspect:  # the first alarm may have been due to another task
            raise TimeoutError(f"this episode blocked the event loop for {seconds:g} s; long work should be async")
        suspect = task

    async def heartbeat() -> None:
        nonlocal suspect
        while True:
            suspect = None
            signal.setitimer(signal.ITIMER_REAL, seconds, seconds)
            await asyncio.sleep(min(1.0, seconds / 4))

    before, left = signal.signal(signal.SIGALRM, interrupt), signal.getitimer(signal.ITIMER_REAL)
    beating = asyncio.create_task(heartbeat())
    try:
        return await work
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)  # first, or a last alarm would reach the previous handler
        signal.signal(signal.SIGALRM, before)
        signal.setitimer(signal.ITIMER_REAL, *left)  # a timer set by the caller fires a little later
        beating.cancel()


async def run_in_daemon_thread(function: Callable[..., T], *arguments: Any, **named: Any) -> T:
    """Like `asyncio.to_thread`, but in a daemon thread: shutdown does not wait for it, so it may never return."""
    loop, context = asyncio.get_running_loop(), contextvars.copy_context()
    future: asyncio.Future[T] = loop.create_future()

    def settle(setter: Callable[[Any], None], value: Any) -> None:
        if not future.done():
            setter(value)

    def work() -> None:
        try:
            result = future.set_result, context.run(function, *arguments, **named)
        except BaseException as error:  # any error is raised in the awaiting task
            if isinstance(error, StopIteration):  # which futures reject
                error = RuntimeError(f"{type(error).__name__}: {error}")
            result = future.set_exception, error  # type: ignore[assignment]
        with suppress(RuntimeError):  # the event loop is closed
            loop.call_soon_threadsafe(settle, *result)

    threading.Thread(target=work, daemon=True).start()
    return await future
