"""Scores an episode: the environment's reward, then the workflow's judge. A failed grader gets one retry.

An episode that cannot be scored fails. It never gets reward 0, which would train the team as if its answer were wrong.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from coterie.errors import BadReward
from coterie.rewards import TIMEOUTS, GraderFailed, GraderTimeout
from coterie.rl.validate import require_finite
from coterie.types import Env, Episode, Grade, Metrics, Outcome

T = TypeVar("T")
Judge = Callable[[Grade], Awaitable[Mapping[str, float]]]
# The grader hung, died, or could not be reached: TimeoutError, GraderTimeout and ConnectionError are OSErrors. Any
# other error is a bug in the grader and would occur again.
RETRYABLE = (GraderFailed, OSError)
BACKOFF = (1.0,)  # seconds before each retry: one retry, so a hanging grader costs two deadlines and a second
RETRIED = "Retried without success"  # the note on an error after the last attempt


@dataclass(frozen=True)
class Scorer:
    """Scores episodes with an environment."""

    env: Env
    deadline: float | None  # seconds per attempt; None where the environment has its own

    async def score(self, episode: Episode, outcome: Outcome) -> None:
        """Write the answer, the rewards and the metrics of an episode."""
        episode.answer = outcome.answer
        episode.reward = outcome.reward or 0.0
        await self._score_env(episode)
        _add_metrics(episode, outcome.metrics)
        if outcome.judge is not None:
            _add_metrics(episode, await self._run_judge(episode, outcome.judge))
        require_finite(episode)

    async def _score_env(self, episode: Episode) -> None:
        """Let the environment score a copy, so that a retry starts from the same state."""

        async def attempt() -> None:
            scored = _copy(episode)
            returned: object = await self.env.score(scored)  # type: ignore[func-returns-value]
            if returned is not None:
                raise BadReward(f"{type(self.env).__name__}.score returned {returned!r}; write it to episode.reward")
            _write_back(scored, episode)

        await with_retries(attempt, episode, self.deadline)

    async def _run_judge(self, episode: Episode, judge: Judge) -> Metrics:
        """Let the workflow reward its turns; each attempt starts from the rewards that the environment gave."""
        before = [turn.reward for turn in episode.turns]

        async def grade(answer: Any) -> float:
            return await self._grade(episode, answer)

        async def attempt() -> Metrics:
            for turn, reward in zip(episode.turns, before, strict=True):
                turn.reward = reward
            found: object = judge(grade)
            if not inspect.isawaitable(found):
                raise BadReward(f"a judge gave {found!r}; write `async def judge(grade)`")
            metrics = await found
            if metrics is not None and not isinstance(metrics, Mapping):
                raise BadReward(f"a judge returned {metrics!r}; return its metrics as a dict, or nothing")
            return dict(metrics or {})

        return await with_retries(attempt, episode, self.deadline)

    async def _grade(self, episode: Episode, answer: Any) -> float:
        """The reward that the environment gives for another answer."""
        if answer == episode.answer:
            return episode.reward

        async def attempt() -> float:
            trial = _copy(replace(episode, answer=answer, metrics={}))
            await self.env.score(trial)
            return trial.reward

        return await with_retries(attempt, episode, self.deadline)


def _add_metrics(episode: Episode, metrics: Mapping[str, float]) -> None:
    """Add the workflow's metrics to those of the environment, such as its `accuracy`."""
    if taken := episode.metrics.keys() & metrics.keys():
        raise BadReward(
            f"the workflow's metric {', '.join(sorted(taken))} is one of the environment's; choose another name"
        )
    episode.metrics |= metrics


async def with_retries(attempt: Callable[[], Awaitable[T]], owner: Episode, deadline: float | None) -> T:
    """Retry a scoring attempt with backoff; nothing is sampled again.

    Each attempt has the deadline; killed graders are counted in the owner's metrics.
    """
    for pause in BACKOFF:
        try:
            return await _attempt(attempt, owner, deadline)
        except RETRYABLE as error:
            if _was_retried(error, owner):  # a nested grade that a judge requested
                raise
        await asyncio.sleep(pause)
    try:
        return await _attempt(attempt, owner, deadline)
    except RETRYABLE as error:
        if not _was_retried(error, owner):
            error.add_note(f"{RETRIED} ({owner.id})")
        raise


async def _attempt(attempt: Callable[[], Awaitable[T]], owner: Episode, deadline: float | None) -> T:
    try:
        async with within_deadline("scoring", deadline, "rollout.score_deadline"):
            return await attempt()
    except GraderTimeout as error:
        if not _was_retried(error, owner):
            owner.metrics[TIMEOUTS] = owner.metrics.get(TIMEOUTS, 0.0) + 1.0
        raise


def _was_retried(error: BaseException, owner: Episode) -> bool:
    """Whether this episode has retried; episodes that were scored in one batch share their error."""
    return f"{RETRIED} ({owner.id})" in getattr(error, "__notes__", ())  # absent until a note is added


@asynccontextmanager
async def within_deadline(what: str, seconds: float | None, key: str) -> AsyncIterator[None]:
    """Raise a TimeoutError that names the setting `key`, also if the code blocked or suppressed its cancellation."""
    late = TimeoutError(f"{what} took longer than the {seconds:g} seconds of {key}" if seconds else "")
    limit = asyncio.timeout(seconds)
    try:
        async with limit:
            yield
    except TimeoutError as error:
        if limit.expired():
            # The traceback of what was cancelled says where the time went; that of the timeout itself does not.
            where = error.__cause__.__traceback__ if error.__cause__ else None
            raise late.with_traceback(where) from None
        raise
    if (end := limit.when()) is not None and asyncio.get_running_loop().time() > end:
        raise late


def _copy(episode: Episode) -> Episode:
    """A copy whose scores can be written and discarded."""
    return replace(episode, turns=[replace(turn) for turn in episode.turns], metrics=dict(episode.metrics))


def _write_back(scored: Episode, episode: Episode) -> None:
    """Copy what scoring wrote. The turns stay the same objects, because a workflow's judge holds references to them."""
    for turn, copy in zip(episode.turns, scored.turns, strict=True):
        vars(turn).update(vars(copy))
    vars(episode).update({**vars(scored), "turns": episode.turns})
