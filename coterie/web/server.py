"""Keys, sockets and middleware of a server: require a key beyond loopback, count requests, drain on SIGTERM."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Collection
from pathlib import Path

import uvicorn
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from coterie.errors import UserError
from coterie.web.prometheus import RequestMetrics
from coterie.web.requests import foreign_page, is_loopback

KEEP_ALIVE = 30  # seconds that an idle connection stays open
DRAIN_SECONDS = 60  # for the requests in flight when SIGTERM comes
MAX_CONNECTIONS = 512  # at once; more get 503. A process may open 1,024 files by default


class ServeError(UserError, ValueError):
    """A server that cannot start; the text says why."""


class Counted:
    """ASGI middleware that counts requests and measures their time."""

    def __init__(self, app: ASGIApp, metrics: RequestMetrics, paths: Collection[str]) -> None:
        self.app, self.metrics, self.paths = app, metrics, paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        started = time.monotonic()

        async def sent(message: Message) -> None:
            if message["type"] == "http.response.start":
                # Other paths are one entry: anyone can invent paths.
                path = scope["path"] if scope["path"] in self.paths else "other"
                self.metrics.add(path, message["status"], time.monotonic() - started)
            await send(message)

        await self.app(scope, receive, sent)


class OwnPagesOnly:
    """ASGI middleware for servers on loopback without a key: refuses requests that a page of another site may have
    sent, by its Host or Origin."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = {name: value.decode("latin-1") for name, value in scope.get("headers", ())}
        problem = foreign_page(headers.get(b"host"), headers.get(b"origin")) if scope["type"] == "http" else None
        if problem is None:
            return await self.app(scope, receive, send)
        await _error(403, problem, "invalid_request_error", "foreign_page")(scope, receive, send)


class FewConnections:
    """ASGI middleware: a 503 with a JSON body while too many connections are open; uvicorn's own is plain text."""

    def __init__(self, app: ASGIApp, count: Callable[[], int]) -> None:
        self.app, self.count = app, count

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or self.count() <= MAX_CONNECTIONS:
            return await self.app(scope, receive, send)
        problem = f"{self.count()} connections are open, and at most {MAX_CONNECTIONS} may; try again"
        # Close the connection, so that it does not count any more.
        headers = {"Retry-After": "1", "Connection": "close"}
        await _error(503, problem, "server_error", "too_many_connections", headers)(scope, receive, send)


def _error(status: int, message: str, kind: str, code: str, headers: dict[str, str] | None = None) -> JSONResponse:
    """An error in OpenAI's form."""
    return JSONResponse({"error": {"message": message, "type": kind, "param": None, "code": code}}, status, headers)


def read_key(file: Path | None, variable: str) -> str | None:
    """The server's key: from a file, else from the environment; None if there is none."""
    if file is None:
        return os.environ.get(variable) or None
    try:
        key = file.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ServeError(f"--key-file {file}: {error}") from error
    if not key:
        raise ServeError(f"--key-file {file}: is empty")
    return key


def bind(host: str, port: int, key: str | None, variable: str) -> socket.socket:
    """A bound socket that does not listen yet. A host other than loopback needs a key."""
    if key is None and not is_loopback(host):
        how = f"set {variable}, or pass --key-file"
        raise ServeError(f"--host {host}: other machines could reach the server, so it needs a key: {how}")
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        bound = socket.socket(family, kind, protocol)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
    except OSError as error:
        raise ServeError(f"--host {host} --port {port}: {error.strerror or error}") from error
    return bound


def url_of(bound: socket.socket, host: str) -> str:
    """The address of a bound server."""
    return f"http://{f'[{host}]' if ':' in host else host}:{bound.getsockname()[1]}"


def server_of(app: ASGIApp, key: str | None) -> uvicorn.Server:
    """A server; `run(sockets=[…])` blocks until SIGTERM or SIGINT, and drains."""
    inner = app if key is not None else OwnPagesOnly(app)
    server = uvicorn.Server(
        uvicorn.Config(
            FewConnections(inner, lambda: len(server.server_state.connections)),
            log_level="warning",
            access_log=False,
            timeout_keep_alive=KEEP_ALIVE,
            timeout_graceful_shutdown=DRAIN_SECONDS,
        )
    )
    return server
