"""The HTTP server of a verifier (a reward model): an ASGI app around the thread that owns the model.

    POST /predict    {"query_responses": [[{role, content}, …], …]}        →  {"result": [p, …]}, as in MaPoRL
    POST /v1/score   {"answers": [{"question": …, "answer": …}, …]}       →  {"scores": [p, …], "hash": …}
    GET  /health     the model's hash and context; needs no key
    GET  /metrics    for Prometheus

Errors are `{"error": message}`, with a `code` if a conversation is too long: 401 no or a wrong key, 413 body too large,
422 malformed or too long, 429 queue full.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from coterie.errors import UserError
from coterie.rewards.verifier import KEY_VARIABLE, TooLong
from coterie.types import Message
from coterie.verifier.requests import MOST, TOO_LONG, PredictRequest, ScoreRequest, read_request
from coterie.verifier.scoring_thread import QueueFull, Scorer, ScoringThread
from coterie.web.json_bodies import BadRequest
from coterie.web.prometheus import CONTENT_TYPE, RequestMetrics, label
from coterie.web.requests import read_body, require_key
from coterie.web.server import Counted, ServeError, bind, server_of, url_of

MAX_BODY = 8_000_000  # bytes
MAX_QUEUE = 2048  # conversations
LARGE_BODY = 100_000  # bytes from which a body is validated in a thread, so that other requests do not wait for it


class App:
    """The handlers of one verifier's server."""

    def __init__(self, thread: ScoringThread, key: str | None = None, max_body: int = MAX_BODY) -> None:
        self.thread, self.key, self.max_body = thread, key, max_body
        self.metrics = RequestMetrics("coterie_verifier", timed=["/predict", "/v1/score"])

    def asgi(self) -> ASGIApp:
        """The ASGI app; on shutdown it scores all waiting requests, then closes the thread."""
        routes = [
            Route("/predict", self.predict, methods=["POST"]),
            Route("/v1/score", self.score, methods=["POST"]),
            Route("/health", self.health, methods=["GET"]),
            Route("/metrics", self.prometheus, methods=["GET"]),
        ]
        handlers = {HTTPException: _refusal, TooLong: _too_long, Exception: _failure}
        app = Starlette(routes=routes, exception_handlers=handlers, lifespan=self._lifespan)  # type: ignore[arg-type]
        return Counted(app, self.metrics, [route.path for route in routes])

    @asynccontextmanager
    async def _lifespan(self, app: Starlette) -> AsyncIterator[None]:
        yield
        await asyncio.to_thread(self.thread.close)

    async def predict(self, request: Request) -> Response:
        return JSONResponse({"result": await self._scores(request, PredictRequest)})

    async def score(self, request: Request) -> Response:
        return JSONResponse({"scores": await self._scores(request, ScoreRequest), "hash": self.thread.verifier.hash})

    async def health(self, request: Request) -> Response:
        verifier = self.thread.verifier
        return JSONResponse({"status": "ok", "hash": verifier.hash, "context": verifier.context})

    async def prometheus(self, request: Request) -> Response:
        require_key(request, self.key)
        return PlainTextResponse(self.metrics.text(self._own_metrics()), media_type=CONTENT_TYPE)

    def _own_metrics(self) -> Iterator[str]:
        thread, metric = self.thread, self.metrics.metric
        yield from metric("batches_total", "counter", "Batches that the model scored.", thread.batches)
        yield from metric("conversations_total", "counter", "Conversations that the model scored.", thread.scored)
        yield from metric("waiting", "gauge", "Conversations in the queue or being scored.", thread.waiting)
        yield from metric("info", "gauge", "The model's hash.", {label("hash", thread.verifier.hash): 1})

    async def _scores(self, request: Request, kind: type[PredictRequest | ScoreRequest]) -> list[float]:
        require_key(request, self.key)
        body = await read_body(request, self.max_body)
        try:
            if len(body) > LARGE_BODY:
                return await self._submitted(await asyncio.to_thread(read_request, kind, body))
            return await self._submitted(read_request(kind, body))
        except BadRequest as error:
            raise HTTPException(422, str(error)) from error
        except QueueFull as error:
            raise HTTPException(429, f"{error}; try again", {"Retry-After": "1"}) from error

    async def _submitted(self, conversations: list[list[Message]]) -> list[float]:
        try:
            return await asyncio.wrap_future(self.thread.submit(conversations))
        except TooLong:
            raise
        except (ValueError, UserError) as error:  # a conversation that the chat template rejects
            raise HTTPException(422, str(error)) from error


async def _refusal(request: Request, error: HTTPException) -> Response:
    return JSONResponse({"error": error.detail}, error.status_code, error.headers)


async def _too_long(request: Request, error: TooLong) -> Response:
    return JSONResponse({"error": str(error), "code": TOO_LONG}, 422)


async def _failure(request: Request, error: Exception) -> Response:
    """The response to an unexpected exception, such as a bug or out of memory; uvicorn logs the traceback."""
    return JSONResponse({"error": f"{type(error).__name__}: {error}"}, 500)


def server(verifier: Scorer, key: str | None, max_queue: int = MAX_QUEUE, max_body: int = MAX_BODY) -> uvicorn.Server:
    """A server for a loaded verifier; `run(sockets=[…])` blocks until SIGTERM or SIGINT, and drains."""
    if max_queue < MOST:
        raise ServeError(f"--max-queue {max_queue}: at least {MOST}, the most conversations of one request")
    return server_of(App(ScoringThread(verifier, max_queue), key, max_body).asgi(), key)


def serve(
    load: Callable[[], Scorer], name: str, host: str, port: int, key: str | None, max_queue: int, max_body: int
) -> None:
    """Bind, load the verifier, and serve it until a signal comes."""
    bound = bind(host, port, key, KEY_VARIABLE)
    verifier = load()
    print(f"{name} (hash {verifier.hash[:12]}) on {url_of(bound, host)}", flush=True)
    server(verifier, key, max_queue, max_body).run(sockets=[bound])
