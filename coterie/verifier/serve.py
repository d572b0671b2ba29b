"""The HTTP server of a verifier (a reward model): an ASGI app around the thread that owns the model.

    POST /predict    {"query_responses": [[{role, content}, …], …]}        →  {"result": [p, …]}, as in MaPoRL
    POST /v1/score   {"answers": [{"question": …, "answer": …}, …]}       →  {"scores": [p, …], "hash": …}
    GET  /health     the model's hash and context; needs no key
    GET  /metrics    for Prometheus

Errors are `{"error": message}`: 401 no or a wrong key, 413 body too large, 422 malformed or too long, 429 queue full.
"""

from __future__ import annotations

import asyncio
import hmac
import os
import socket
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from ipaddress import ip_address
from pathlib import Path

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.types import Message as AsgiMessage

from coterie.errors import UserError
from coterie.rewards.verifier import KEY_VARIABLE
from coterie.types import Message
from coterie.verifier.prometheus import CONTENT_TYPE, RequestMetrics
from coterie.verifier.requests import MOST, BadRequest, PredictRequest, ScoreRequest, read_request
from coterie.verifier.scoring_thread import QueueFull, Scorer, ScoringThread

MAX_BODY = 8_000_000  # bytes
MAX_QUEUE = 2048  # conversations
LARGE_BODY = 100_000  # bytes from which a body is validated in a thread, so that other requests do not wait for it
DISCARDED = 4  # times the largest body that is read from a client before it is told that its body is too large
BODY_SECONDS = 30.0  # for a client to send its body
KEEP_ALIVE = 30  # seconds that an idle connection stays open
DRAIN_SECONDS = 60  # for the requests in flight when SIGTERM comes


class ServeError(UserError, ValueError):
    """A server that cannot start; the text says why."""


class App:
    """The handlers of one verifier's server."""

    def __init__(self, thread: ScoringThread, key: str | None = None, max_body: int = MAX_BODY) -> None:
        self.thread, self.key, self.max_body = thread, key, max_body
        self.metrics = RequestMetrics()

    def asgi(self) -> ASGIApp:
        """The ASGI app; its end closes the thread after all that waits is scored."""
        routes = [
            Route("/predict", self.predict, methods=["POST"]),
            Route("/v1/score", self.score, methods=["POST"]),
            Route("/health", self.health, methods=["GET"]),
            Route("/metrics", self.prometheus, methods=["GET"]),
        ]
        handlers = {HTTPException: _refusal, Exception: _failure}
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
        self._require_key(request)
        return PlainTextResponse(self.metrics.text(self.thread), media_type=CONTENT_TYPE)

    async def _scores(self, request: Request, kind: type[PredictRequest | ScoreRequest]) -> list[float]:
        self._require_key(request)
        body = await self._body(request)
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
        except (ValueError, UserError) as error:  # a conversation that is too long, or that the chat template rejects
            raise HTTPException(422, str(error)) from error

    def _require_key(self, request: Request) -> None:
        if self.key is None:
            return
        given = request.headers.get("authorization", "").removeprefix("Bearer ")
        if not hmac.compare_digest(given.encode(), self.key.encode()):
            needed = "this server needs a key, in the header `Authorization: Bearer KEY`"
            raise HTTPException(401, needed, {"WWW-Authenticate": "Bearer"})

    async def _body(self, request: Request) -> bytes:
        """The body, at most `max_body` bytes. More is read and discarded, or the client would not see the reply."""
        body, size = bytearray(), 0
        try:
            async with asyncio.timeout(BODY_SECONDS):
                async for chunk in request.stream():
                    size += len(chunk)
                    if size <= self.max_body:
                        body += chunk
                    elif size > DISCARDED * self.max_body:
                        break
        except TimeoutError:
            raise HTTPException(408, f"the body did not arrive within {BODY_SECONDS:g} s") from None
        except ClientDisconnect:
            raise HTTPException(400, "the client disconnected") from None
        if size > self.max_body:
            raise HTTPException(413, f"the body has more than {self.max_body:,} bytes; send fewer answers at a time")
        return bytes(body)


class Counted:
    """ASGI middleware that counts requests and measures their time."""

    def __init__(self, app: ASGIApp, metrics: RequestMetrics, paths: list[str]) -> None:
        self.app, self.metrics, self.paths = app, metrics, paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        started = time.monotonic()

        async def sent(message: AsgiMessage) -> None:
            if message["type"] == "http.response.start":
                # Other paths are one entry: anyone can invent paths.
                path = scope["path"] if scope["path"] in self.paths else "other"
                self.metrics.add(path, message["status"], time.monotonic() - started)
            await send(message)

        await self.app(scope, receive, sent)


async def _refusal(request: Request, error: HTTPException) -> Response:
    return JSONResponse({"error": error.detail}, error.status_code, error.headers)


async def _failure(request: Request, error: Exception) -> Response:
    """Of a bug, or of a GPU without memory; uvicorn logs the traceback."""
    return JSONResponse({"error": f"{type(error).__name__}: {error}"}, 500)


def read_key(file: Path | None) -> str | None:
    """The server's key: from a file, else from the environment; None if there is none."""
    if file is None:
        return os.environ.get(KEY_VARIABLE) or None
    try:
        key = file.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ServeError(f"--key-file {file}: {error}") from error
    if not key:
        raise ServeError(f"--key-file {file}: is empty")
    return key


def is_loopback(host: str) -> bool:
    """True if only this machine can reach a server on this host."""
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def bind(host: str, port: int, key: str | None) -> socket.socket:
    """A bound socket that does not listen yet. A host that others can reach needs a key."""
    if key is None and not is_loopback(host):
        how = f"set {KEY_VARIABLE}, or pass --key-file"
        raise ServeError(f"--host {host}: other machines could reach the server, so it needs a key: {how}")
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        bound = socket.socket(family, kind, protocol)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
    except OSError as error:
        raise ServeError(f"--host {host} --port {port}: {error.strerror or error}") from error
    return bound


def server(verifier: Scorer, key: str | None, max_queue: int = MAX_QUEUE, max_body: int = MAX_BODY) -> uvicorn.Server:
    """A server for a loaded verifier; `run(sockets=[…])` blocks until SIGTERM or SIGINT, and drains."""
    if max_queue < MOST:
        raise ServeError(f"--max-queue {max_queue}: at least {MOST}, the most conversations of one request")
    app = App(ScoringThread(verifier, max_queue), key, max_body).asgi()
    return uvicorn.Server(
        uvicorn.Config(
            app,
            log_level="warning",
            access_log=False,
            timeout_keep_alive=KEEP_ALIVE,
            timeout_graceful_shutdown=DRAIN_SECONDS,
        )
    )


def serve(
    load: Callable[[], Scorer], name: str, host: str, port: int, key: str | None, max_queue: int, max_body: int
) -> None:
    """Bind, load the verifier, and serve it until a signal comes."""
    bound = bind(host, port, key)
    verifier = load()
    shown = f"[{host}]" if ":" in host else host
    print(f"{name} (hash {verifier.hash[:12]}) on http://{shown}:{bound.getsockname()[1]}", flush=True)
    server(verifier, key, max_queue, max_body).run(sockets=[bound])
