"""Nothing hangs: code that holds up all episodes is ended, and a thread that never returns is left alone."""

from __future__ import annotations

import asyncio
import contextvars
import signal
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

T = TypeVar("T")

_engines_at_work = 0


@contextmanager
def watchdog_paused() -> Iterator[None]:
    """For engines: what is computed inside of this block, without an await, may take as long as it likes."""
    global _engines_at_work
    _engines_at_work += 1
    try:
        yield
    finally:
        _engines_at_work -= 1


async def run_with_watchdog(work: Awaitable[T], seconds: float) -> T:
    """What `work` gives. A task that computes or blocks for so long, twice at most, gets a TimeoutError where it is:
    all others wait for it. Only the main thread can be interrupted so."""
    if threading.current_thread() is not threading.main_thread():
        return await work
    suspect: asyncio.Task[Any] | None = None

    def interrupt(*_: Any) -> None:
        nonlocal suspect
        task = asyncio.current_task()
        if task is None or _engines_at_work:
            return
        if task is suspect:  # the time before may have been another's
            raise TimeoutError(f"all episodes waited {seconds:g} seconds for this one; what takes long should be async")
        suspect = task

    async def beat() -> None:
        nonlocal suspect
        while True:
            suspect = None
            signal.setitimer(signal.ITIMER_REAL, seconds, seconds)
            await asyncio.sleep(min(1.0, seconds / 4))

    before, left = signal.signal(signal.SIGALRM, interrupt), signal.getitimer(signal.ITIMER_REAL)
    beating = asyncio.create_task(beat())
    try:
        return await work
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)  # first, or a last alarm would meet whoever listened before
        signal.signal(signal.SIGALRM, before)
        signal.setitimer(signal.ITIMER_REAL, *left)  # whoever had set one waits a little longer for it
        beating.cancel()


async def run_in_daemon_thread(function: Callable[..., T], *arguments: Any, **named: Any) -> T:
    """As `asyncio.to_thread`; but nobody waits for the thread at the end, and so it may never come back."""
    loop, context = asyncio.get_running_loop(), contextvars.copy_context()
    found: asyncio.Future[T] = loop.create_future()

    def settle(how: Callable[[Any], None], what: Any) -> None:
        if not found.done():
            how(what)

    def work() -> None:
        try:
            told = found.set_result, context.run(function, *arguments, **named)
        except BaseException as error:  # whatever it is, it is told to who asked
            if isinstance(error, StopIteration):  # which no future takes
                error = RuntimeError(f"{type(error).__name__}: {error}")
            told = found.set_exception, error  # type: ignore[assignment]
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(settle, *told)

    threading.Thread(target=work, daemon=True).start()
    return await found
