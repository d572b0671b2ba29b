"""Dynamic batching: answers that arrive within 0.1 s go into one call of a batched reward function."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from coterie.rewards.grader_pool import GraderFailed, GraderTimeout

WAIT = 0.1  # seconds that the first answer of a batch waits for others
MAX_BATCH = 64  # answers in one call

Arguments = tuple[Any, ...]  # answer, truth, and the task if the function takes it
Score = Callable[[Sequence[Arguments]], Awaitable[Sequence[Any]]]


@dataclass
class Batch:
    """Answers to score in one call, and the futures of their callers."""

    loop: asyncio.AbstractEventLoop
    answers: list[Arguments] = field(default_factory=list)
    futures: list[asyncio.Future[Any]] = field(default_factory=list)


@dataclass
class Batcher:
    """Fills one batch at a time. Batches are scored concurrently, so one that hangs does not delay others."""

    filling: Batch | None = None
    scoring: set[asyncio.Task[None]] = field(default_factory=set)  # the event loop keeps only weak references

    async def score(self, answer: Arguments, score: Score) -> Any:
        loop = asyncio.get_running_loop()
        # Each training step has its own event loop; a batch of an interrupted one has no callers left.
        if self.filling is None or self.filling.loop is not loop:
            self.filling = Batch(loop)
            task = loop.create_task(self._close(self.filling, score))
            self.scoring.add(task)
            task.add_done_callback(self.scoring.discard)
        batch, future = self.filling, loop.create_future()
        batch.answers.append(answer)
        batch.futures.append(future)
        if len(batch.answers) == MAX_BATCH:
            self.filling = None
        return await future

    async def _close(self, batch: Batch, score: Score) -> None:
        await asyncio.sleep(WAIT)
        if self.filling is batch:
            self.filling = None
        for future, outcome in zip(batch.futures, await _score_all(batch.answers, score), strict=True):
            if future.done():  # its episode was cancelled
                continue
            if isinstance(outcome, BaseException):
                future.set_exception(outcome)
            else:
                future.set_result(outcome)


async def _score_all(answers: Sequence[Arguments], score: Score) -> Sequence[Any]:
    """The reward of each answer, or its exception. If the call fails, each answer is retried alone, so that only the
    answer that breaks the grader fails."""
    (outcome,) = await asyncio.gather(score(answers), return_exceptions=True)
    if not isinstance(outcome, BaseException):
        return outcome
    if len(answers) == 1 or not isinstance(outcome, GraderFailed | GraderTimeout):
        return [outcome] * len(answers)
    alone = await asyncio.gather(*(_score_all([one], score) for one in answers))
    return [outcome for (outcome,) in alone]
