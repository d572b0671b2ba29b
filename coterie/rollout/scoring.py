"""Asks a grader that hung or was down once more. An episode that gets no score fails; it is never a zero."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TypeVar

from coterie.rewards import TIMEOUTS, GraderFailed, GraderTimeout
from coterie.types import Episode

T = TypeVar("T")
# The grader hung, died, or could not be reached: TimeoutError, GraderTimeout and ConnectionError are OSErrors. Any
# other error is a mistake in the grader and would come again.
DOWN = (GraderFailed, OSError)
BACKOFF = (1.0,)  # seconds to wait before each further attempt, so a hanging grader costs two deadlines and a second
AGAIN = "It was asked for again, in vain."  # the note of an error after the last attempt


async def with_retries(attempt: Callable[[], Awaitable[T]], owner: Episode, deadline: float | None) -> T:
    """What an attempt to score gives, or a later one after a pause. Nothing is sampled again.

    Each attempt has the deadline; killed graders are counted in the owner's metrics. Without a score in the end the
    episode fails: a zero would teach that its answer was wrong.
    """
    for pause in BACKOFF:
        try:
            return await _once(attempt, owner, deadline)
        except DOWN as error:
            if _was_asked_again(error):  # a grade that a judge asked for
                raise
        await asyncio.sleep(pause)
    try:
        return await _once(attempt, owner, deadline)
    except DOWN as error:
        error.add_note(AGAIN)
        raise


async def _once(attempt: Callable[[], Awaitable[T]], owner: Episode, deadline: float | None) -> T:
    try:
        async with within_deadline("its score", deadline, "rollout.score_deadline"):
            return await attempt()
    except GraderTimeout as error:
        if not _was_asked_again(error):
            owner.metrics[TIMEOUTS] = owner.metrics.get(TIMEOUTS, 0.0) + 1.0
        raise


def _was_asked_again(error: BaseException) -> bool:
    return AGAIN in getattr(error, "__notes__", ())  # which an exception has only once something is noted


@asynccontextmanager
async def within_deadline(what: str, seconds: float | None, key: str) -> AsyncIterator[None]:
    """Code that blocks, or does not let itself be cancelled, comes to its end all the same; too late is too late."""
    late = TimeoutError(f"{what} took longer than the {seconds:g} seconds of {key}" if seconds else "")
    limit = asyncio.timeout(seconds)
    try:
        async with limit:
            yield
    except TimeoutError as error:
        if limit.expired():
            raise late from error
        raise
    if (end := limit.when()) is not None and asyncio.get_running_loop().time() > end:
        raise late


def copy_to_score(episode: Episode) -> Episode:
    """One whose scores can be written and thrown away."""
    return replace(episode, turns=[replace(turn) for turn in episode.turns], metrics=dict(episode.metrics))


def write_score(scored: Episode, episode: Episode) -> None:
    """Take over all that scoring wrote. The turns stay the same objects: a workflow's judge holds on to them."""
    for turn, copy in zip(episode.turns, scored.turns, strict=True):
        vars(turn).update(vars(copy))
    vars(episode).update({**vars(scored), "turns": episode.turns})
