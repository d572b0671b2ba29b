"""Gather answers that become ready at about the same time into one call of a batched reward."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from coterie.rewards.worker import GraderFailed, GraderTimeout

WAIT = 0.1  # seconds that the first answer of a batch waits for others
MOST = 64  # answers in one call

Asked = tuple[Any, ...]  # answer, truth, and the task if the function takes it
Score = Callable[[Sequence[Asked]], Awaitable[Sequence[Any]]]


@dataclass
class Batch:
    """Answers that will be scored together, and who waits for them."""

    loop: asyncio.AbstractEventLoop
    asked: list[Asked] = field(default_factory=list)
    futures: list[asyncio.Future[Any]] = field(default_factory=list)


@dataclass
class Batcher:
    """Fills one batch at a time. Batches are scored side by side, so one that hangs holds up no other."""

    filling: Batch | None = None
    scoring: set[asyncio.Task[None]] = field(default_factory=set)  # the loop itself keeps only weak references

    async def score(self, asked: Asked, score: Score) -> Any:
        loop = asyncio.get_running_loop()
        # Each step of a run has an event loop of its own; what an interrupted one left behind is nobody's.
        if self.filling is None or self.filling.loop is not loop:
            self.filling = Batch(loop)
            task = loop.create_task(self._close(self.filling, score))
            self.scoring.add(task)
            task.add_done_callback(self.scoring.discard)
        batch, future = self.filling, loop.create_future()
        batch.asked.append(asked)
        batch.futures.append(future)
        if len(batch.asked) == MOST:
            self.filling = None
        return await future

    async def _close(self, batch: Batch, score: Score) -> None:
        await asyncio.sleep(WAIT)
        if self.filling is batch:
            self.filling = None
        for future, outcome in zip(batch.futures, await _scored(batch.asked, score), strict=True):
            if future.done():  # its episode was cancelled
                continue
            if isinstance(outcome, BaseException):
                future.set_exception(outcome)
            else:
                future.set_result(outcome)


async def _scored(asked: Sequence[Asked], score: Score) -> Sequence[Any]:
    """What each answer earns, or what went wrong. One by one if a call for all of them fails, so an answer that breaks
    the grader fails alone."""
    (outcome,) = await asyncio.gather(score(asked), return_exceptions=True)
    if not isinstance(outcome, BaseException):
        return outcome
    if len(asked) == 1 or not isinstance(outcome, GraderFailed | GraderTimeout):
        return [outcome] * len(asked)
    alone = await asyncio.gather(*(_scored([one], score) for one in asked))
    return [outcome for (outcome,) in alone]
