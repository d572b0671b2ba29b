"""The functions that the reward `verifier` imports by name: open a verifier once per process, and score answers.

A verifier from a run's folder is loaded into this process, where one thread owns it; one at a URL is called over HTTP.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Protocol

from coterie.errors import ModelError, UserError
from coterie.rewards.verifier import KEY_VARIABLE, TooLong, VerifierSource
from coterie.verifier.client import Pair, VerifierClient, VerifierRefused, VerifierTimeout
from coterie.verifier.requests import conversation
from coterie.verifier.scoring_thread import ScoringThread
from coterie.watchdog import run_in_daemon_thread

POLL = 0.02  # seconds
PROBE: Pair = ("What is 1 + 1?", "2")


class OpenVerifier(Protocol):
    """A verifier that is ready to score."""

    @property
    def hash(self) -> str: ...

    async def score(self, pairs: Sequence[Pair], deadline: float) -> list[float]: ...

    def close(self) -> None: ...


class LocalVerifier:
    """A verifier in this process."""

    def __init__(self, thread: ScoringThread) -> None:
        self.thread = thread

    @property
    def hash(self) -> str:
        return self.thread.verifier.hash

    async def score(self, pairs: Sequence[Pair], deadline: float) -> list[float]:
        """The deadline starts with the batch: time in the queue does not count."""
        future = self.thread.submit([conversation(question, answer) for question, answer in pairs])
        while not future.running() and not future.done():
            await asyncio.sleep(POLL)
        try:
            return await asyncio.wait_for(_scores_or_refused(future), deadline)
        except TimeoutError:
            raise VerifierTimeout(f"the verifier scored {len(pairs)} answers for more than {deadline:g} s") from None

    def close(self) -> None:
        self.thread.close()


class RemoteVerifier:
    """A verifier behind a URL."""

    def __init__(self, client: VerifierClient) -> None:
        self.client = client

    @property
    def hash(self) -> str:
        assert self.client.hash is not None, "known since the probe"
        return self.client.hash

    async def score(self, pairs: Sequence[Pair], deadline: float) -> list[float]:
        return await run_in_daemon_thread(self.client.score, pairs, deadline)

    def close(self) -> None:
        self.client.close()


async def _scores_or_refused(future: Future[list[float]]) -> list[float]:
    """The scores; an error about the answers, except TooLong, becomes VerifierRefused, as from a server."""
    try:
        return await asyncio.wrap_future(future)
    except TooLong:
        raise
    except (ValueError, UserError) as error:
        raise VerifierRefused(str(error)) from error


_open: dict[VerifierSource, OpenVerifier] = {}


def open_verifier(source: VerifierSource, device: str, deadline: float) -> str:
    """Load a verifier, or connect to it, in place of one that was opened before; returns the hash of its model."""
    close_verifier(source)
    if source.run is not None:
        from coterie.verifier.model import Verifier  # imports torch

        if not source.run.is_dir():
            raise ModelError(f"verifier: there is no folder {source.run}; `coterie verifier train` makes one")
        _open[source] = LocalVerifier(ScoringThread(Verifier.load(source.run, device=device)))
    else:
        assert source.url is not None
        client = VerifierClient(source.url, os.environ.get(KEY_VARIABLE))
        client.score([PROBE], deadline)  # a server that is down or needs a key is found before the run begins
        _open[source] = RemoteVerifier(client)
    return _open[source].hash


def close_verifier(source: VerifierSource) -> None:
    """End a verifier's thread or connections, if it is open."""
    if source in _open:
        _open.pop(source).close()


async def score_answers(source: VerifierSource, pairs: Sequence[Pair], deadline: float) -> list[float]:
    """The probability that each answer to its question is right; the verifier must be open."""
    return await _open[source].score(pairs, deadline)
