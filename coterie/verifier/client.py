"""The client of a verifier's server: pooled connections, a deadline, and retries with exponential backoff."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import httpx

from coterie.errors import StopsRun, UserError
from coterie.rewards import GraderFailed
from coterie.rewards.verifier import KEY_VARIABLE, TooLong
from coterie.verifier.requests import MOST, TOO_LONG

CONNECTIONS = 8
BACKOFF = (0.1, 2.0)  # seconds before the first retry, and at most
Pair = tuple[str, str]  # question, answer


class VerifierDown(UserError, ConnectionError):
    """The server could not be reached, or was overloaded, until the deadline."""


class VerifierTimeout(UserError, TimeoutError):
    """The server did not reply within the deadline."""


class VerifierRefused(GraderFailed):
    """The server rejected a request."""


class VerifierChanged(StopsRun, RuntimeError):
    """The server's model is not the one that the run began with."""


class WrongKey(StopsRun, RuntimeError):
    """The server needs another key."""


class VerifierClient:
    """Scores answers over HTTP. Synchronous, because a run has a new event loop in every step, and the connection pool
    must outlive it."""

    def __init__(self, url: str, key: str | None = None) -> None:
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        limits = httpx.Limits(max_connections=CONNECTIONS, max_keepalive_connections=CONNECTIONS)
        self.url = url.rstrip("/")
        self.http = httpx.Client(base_url=self.url, headers=headers, limits=limits)
        self.hash: str | None = None  # of the first reply

    def score(self, pairs: Sequence[Pair], deadline: float) -> list[float]:
        """The score of each answer; `deadline` is in seconds, for all of them."""
        end = time.monotonic() + deadline
        parts = (pairs[start : start + MOST] for start in range(0, len(pairs), MOST))
        return [score for part in parts for score in self._score(part, end, deadline)]

    def close(self) -> None:
        self.http.close()

    def _score(self, pairs: Sequence[Pair], end: float, deadline: float) -> list[float]:
        body = {"answers": [{"question": question, "answer": answer} for question, answer in pairs]}
        pause = BACKOFF[0]
        while True:
            reply = self._attempt(body, max(0.001, end - time.monotonic()))
            if not isinstance(reply, UserError):
                return self._scores(reply, len(pairs))
            if time.monotonic() + pause >= end:
                raise type(reply)(f"verifier {self.url}: {reply} (within {deadline:g} s)") from reply
            time.sleep(pause)
            pause = min(2 * pause, BACKOFF[1])

    def _attempt(self, body: Any, seconds: float) -> Any:
        """The reply, or a retryable error."""
        try:
            response = self.http.post("/v1/score", json=body, timeout=seconds)
        except httpx.TimeoutException:
            return VerifierTimeout("no reply")
        except httpx.TransportError as error:
            why = str(error) or type(error).__name__
            return VerifierDown(f"no connection, {why}; is `coterie verifier serve` running?")
        status = response.status_code
        if status == 429 or status >= 500:
            return VerifierDown(f"no score, but status {status}, {_error_of(response)}")
        if status == 401:
            raise WrongKey(f"verifier {self.url}: {_error_of(response)}; set {KEY_VARIABLE} to the server's key")
        if _code_of(response) == TOO_LONG:
            raise TooLong(f"verifier {self.url}: {_error_of(response)}")
        if status != 200:
            raise VerifierRefused(f"verifier {self.url}: status {status}: {_error_of(response)}")
        return _json(response)

    def _scores(self, reply: Any, count: int) -> list[float]:
        scores = reply.get("scores") if isinstance(reply, dict) else None
        valid = isinstance(scores, list) and len(scores) == count
        if not valid or not all(isinstance(score, float | int) and 0 <= score <= 1 for score in scores or ()):
            raise VerifierRefused(f"verifier {self.url}: the reply has no {count} scores from 0 to 1: {reply!r:.200}")
        self._require_hash(str(reply.get("hash")))
        return [float(score) for score in scores or ()]

    def _require_hash(self, found: str) -> None:
        if self.hash is None:
            self.hash = found
        if found != self.hash:
            raise VerifierChanged(
                f"verifier {self.url}: its model changed within the run, from hash {self.hash[:12]} to {found[:12]}; "
                "scores of two models are not comparable: serve the first one again, or start a new run"
            )


def _error_of(response: httpx.Response) -> str:
    reply = _json(response)
    return str(reply["error"]) if isinstance(reply, dict) and "error" in reply else response.text[:200]


def _code_of(response: httpx.Response) -> Any:
    reply = _json(response)
    return reply.get("code") if isinstance(reply, dict) else None


def _json(response: httpx.Response) -> Any:
    try:
        return response.json()
    except ValueError:
        return None
