"""A role played by a remote endpoint in the format of OpenAI's chat completions: text in, text out, no token ids.

Its turns are never trained on. The HTTP client is synchronous and runs in threads: each step of a run has a new event
loop, and an asynchronous client's connection pool could not be reused across them.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import httpx

from coterie.engines.text_player import TextReply
from coterie.errors import StopsRun, UserError
from coterie.types import Message, Sampling, Stop

BACKOFF = (0.2, 8.0)  # seconds before the first retry, and at most
SEEDS = 2**31  # endpoints reject seeds from here on


class EndpointDown(UserError, ConnectionError):
    """The endpoint could not be reached, or was overloaded, until the deadline."""


class EndpointRefused(UserError, ValueError):
    """The endpoint rejected one request, such as a prompt that is too long."""


class EndpointUnusable(StopsRun, RuntimeError):
    """The endpoint rejects every request: a wrong key, or an unknown model."""


@dataclass(frozen=True)
class Endpoint:
    """The address of a remote model, and the limits on requests to it."""

    url: str  # as in https://host/v1
    model: str
    key: str | None = None
    deadline: float = 60.0  # seconds for one reply, retries included
    concurrency: int = 8  # requests at once
    rate: float | None = None  # requests per minute, at most


class RateLimit:
    """Spaces requests evenly in time."""

    def __init__(self, per_minute: float | None) -> None:
        self.pause = 60 / per_minute if per_minute else 0.0
        self.next = 0.0
        self.lock = threading.Lock()

    def wait(self) -> float:
        """Block the calling thread until its request may start; the seconds it waited."""
        with self.lock:
            now = time.monotonic()
            start = max(self.next, now)
            self.next = start + self.pause
        time.sleep(start - now)
        return start - now


class RemotePlayer:
    """Plays roles by asking an endpoint; retries with exponential backoff until the deadline."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        headers = {"Authorization": f"Bearer {endpoint.key}"} if endpoint.key else {}
        limits = httpx.Limits(max_connections=endpoint.concurrency)
        self.http = httpx.Client(base_url=endpoint.url.rstrip("/"), headers=headers, limits=limits)
        self.rate = RateLimit(endpoint.rate)
        self.threads = ThreadPoolExecutor(endpoint.concurrency, thread_name_prefix="endpoint")

    async def reply(self, messages: Sequence[Message], seed: int, sampling: Sampling) -> TextReply:
        body: dict[str, Any] = {
            "model": self.endpoint.model,
            "messages": list(messages),
            "max_tokens": sampling.max_tokens,
            "temperature": sampling.temperature,
            "seed": seed % SEEDS,
        }
        if sampling.top_p < 1:
            body["top_p"] = sampling.top_p
        if sampling.stop:
            body["stop"] = list(sampling.stop)
        return await asyncio.get_running_loop().run_in_executor(self.threads, self.ask, body)

    def ask(self, body: dict[str, Any]) -> TextReply:
        """One reply, within the deadline; time in the queue of the rate limit does not count."""
        self.rate.wait()
        end, pause = time.monotonic() + self.endpoint.deadline, BACKOFF[0]
        while True:
            found = self._attempt(body, max(0.001, end - time.monotonic()))
            if isinstance(found, TextReply):
                return found
            error, wait = found
            pause = max(pause, wait)
            if time.monotonic() + pause >= end:
                raise EndpointDown(f"{self.endpoint.url}: {error} (within {self.endpoint.deadline:g} s)")
            time.sleep(pause)
            pause = min(2 * pause, BACKOFF[1])
            end += self.rate.wait()

    def _attempt(self, body: dict[str, Any], seconds: float) -> TextReply | tuple[str, float]:
        """The reply; or a retryable error, and the seconds of the endpoint's Retry-After header."""
        try:
            response = self.http.post("/chat/completions", json=body, timeout=seconds)
        except httpx.TransportError as error:
            return f"no reply, {str(error) or type(error).__name__}", 0.0
        status = response.status_code
        if status == 200:
            return _reply(self.endpoint.url, response)
        problem = f"{self.endpoint.url}: status {status}, {_message(response)}"
        if status in (408, 409, 429) or status >= 500:
            return f"status {status}, {_message(response)}", _retry_after(response)
        if status in (401, 403, 404):
            raise EndpointUnusable(f"{problem}; check api, model and the variable of key_env")
        raise EndpointRefused(problem)


def _reply(url: str, response: httpx.Response) -> TextReply:
    try:
        data = response.json()
        choice, usage = data["choices"][0], data.get("usage") or {}
        text = choice["message"]["content"] or ""
    except (ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
        raise EndpointRefused(f"{url}: its reply is no chat completion: {response.text[:200]}") from error
    stop: Stop = "length" if choice.get("finish_reason") == "length" else "end"
    return TextReply(text, stop, int(usage.get("prompt_tokens") or 0), int(usage.get("completion_tokens") or 0))


def _message(response: httpx.Response) -> str:
    try:
        error = response.json()["error"]
        return str(error["message"] if isinstance(error, dict) else error)
    except (ValueError, KeyError, TypeError):
        return response.text[:200]


def _retry_after(response: httpx.Response) -> float:
    try:
        return float(response.headers.get("retry-after", 0))
    except ValueError:  # Retry-After may be a date
        return 0.0
