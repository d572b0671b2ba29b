"""The viewer's server: an ASGI app that answers with JSON, and with the page's own files.

    GET /                                          the page; all else is loaded by it
    GET /api/runs                                  all runs
    GET /api/runs/{run}                            config, steps with episodes
    GET /api/runs/{run}/metrics                    rows of metrics.jsonl
    GET /api/runs/{run}/events                     new rows and changes of state, as server-sent events
    GET /api/runs/{run}/{kind}                     episodes by filter
    GET /api/runs/{run}/{kind}/{step}/{line}       one episode
    GET /api/runs/{run}/{kind}/{step}/group/{n}    a group of turns that were compared
    POST /api/runs/{run}/replay                    advantages under another algorithm or credit
    GET /api/paired/{run}/{step}/{run}/{step}      two evaluations, task by task
    GET /api/results, /api/results/{name}          comparisons and games

Runs and files are looked up in the listing, so no request can name a path.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hmac
from collections.abc import AsyncIterator, Callable, Iterable
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from coterie.errors import UserError
from coterie.view import episodes
from coterie.view.listing import Listing
from coterie.view.page import STATIC, describe, dumped
from coterie.view.replay import replayed
from coterie.view.run_folder import KINDS, RunFolder
from coterie.web.json_bodies import BadRequest, Strict, Text, read_json, validated
from coterie.web.requests import read_body, require_json

MAX_BODY = 10_000  # bytes of a request
POLL_SECONDS = 0.5  # between polls of a live run
TYPES = {".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class ReplayRequest(Strict):
    changes: list[Text]


class App:
    """The handlers of one viewer."""

    def __init__(self, listing: Listing, key: str | None = None, replays: bool = False) -> None:
        """`replays`: whether the page may run `coterie replay`, which loads the code of a run."""
        self.listing, self.key, self.replays = listing, key, replays
        self.is_ending: Callable[[], bool] = lambda: False  # event streams must end with the server

    def asgi(self) -> ASGIApp:
        run = "/api/runs/{run}"
        routes = [
            Route("/", self.page),
            Route("/static/{name}", self.static),
            Route("/api/runs", self.json(lambda _: self.listing.summaries())),
            Route(run, self.json(lambda r: describe(self.run(r)) | {"replays": self.replays})),
            Route(f"{run}/replay", self.replay, methods=["POST"]),
            Route(f"{run}/metrics", self.json(lambda r: self.run(r).metrics())),
            Route(f"{run}/events", self.events),
            Route(f"{run}/{{kind}}", self.json(self.listed)),
            Route(f"{run}/{{kind}}/{{step:int}}/{{line:int}}", self.json(self.episode)),
            Route(f"{run}/{{kind}}/{{step:int}}/group/{{number:int}}", self.json(self.group)),
            Route("/api/results", self.json(lambda _: [{"name": n, "kind": k} for n, (k, _) in self._results()])),
            Route("/api/results/{name}", self.json(lambda r: self.listing.result(r.path_params["name"]))),
            Route("/api/paired/{run}/{step:int}/{other}/{other_step:int}", self.json(self.paired)),
        ]
        handlers = {HTTPException: _refusal}
        app = Starlette(routes=routes, exception_handlers=handlers)  # type: ignore[arg-type]
        return WithHeaders(app, self.key)

    def json(self, answer: Callable[[Request], Any]) -> Callable[[Request], Any]:
        """An endpoint that answers with JSON, computed in a thread: files may be large."""

        async def endpoint(request: Request) -> Response:
            try:
                return Response(await asyncio.to_thread(lambda: dumped(answer(request))), media_type="application/json")
            except KeyError as error:
                raise HTTPException(404, f"there is no {error.args[0]}") from error
            except (UserError, ValueError) as error:
                raise HTTPException(422, str(error)) from error

        return endpoint

    def _results(self) -> Iterable[tuple[str, tuple[str, Path]]]:
        return self.listing.results().items()

    def run(self, request: Request) -> RunFolder:
        return self.listing.run(request.path_params["run"])

    async def page(self, request: Request) -> Response:
        return Response(STATIC["index.html"], media_type="text/html")

    async def static(self, request: Request) -> Response:
        name = request.path_params["name"]
        kind = TYPES.get(name[name.rfind(".") :])
        if name not in STATIC or kind is None:
            raise HTTPException(404, "there is no such file")
        return Response(STATIC[name], media_type=kind)

    def listed(self, request: Request) -> Any:
        return episodes.listed(self.run(request), self._kind(request), *read_filter(dict(request.query_params)))

    def episode(self, request: Request) -> Any:
        place = request.path_params
        return episodes.one_episode(self.run(request), self._kind(request), place["step"], place["line"])

    def group(self, request: Request) -> Any:
        place = request.path_params
        return episodes.group_members(self.run(request), self._kind(request), place["step"], place["number"])

    def paired(self, request: Request) -> Any:
        place = request.path_params
        other = self.listing.run(place["other"])
        return episodes.compared((self.run(request), place["step"]), (other, place["other_step"]))

    async def replay(self, request: Request) -> Response:
        """`{"changes": ["algorithm=rloo"]}` → how advantages would change."""
        if not self.replays:
            raise HTTPException(403, "start the viewer with --replay: a replay loads the code of the run")
        require_json(request)
        try:
            body = validated(ReplayRequest, read_json(await read_body(request, MAX_BODY)))
            run = await asyncio.to_thread(self.run, request)
            return Response(dumped(await replayed(run, body.changes)), media_type="application/json")
        except KeyError as error:
            raise HTTPException(404, f"there is no {error.args[0]}") from error
        except (BadRequest, ValueError) as error:
            raise HTTPException(422, str(error)) from error

    async def events(self, request: Request) -> Response:
        try:
            run = await asyncio.to_thread(self.run, request)
            # A browser that connects again says which row it had last.
            after = int(request.headers.get("last-event-id") or request.query_params.get("after") or 0)
        except (KeyError, ValueError) as error:
            raise HTTPException(404, f"there is no {error.args[0]}") from error
        return StreamingResponse(self._events(run, after, request), media_type="text/event-stream")

    async def _events(self, run: RunFolder, after: int, request: Request) -> AsyncIterator[str]:
        """Rows as they are written, and the state when it changes; `reset` if metrics shrink: the run was rewound."""
        state: Any = None
        path, size = run.metrics_path, -1
        while not self.is_ending() and not await request.is_disconnected():
            now = path.stat().st_size if path.is_file() else 0
            if now < size:
                yield "event: reset\ndata: {}\n\n"
                return
            if now != size:
                rows, size = (await asyncio.to_thread(run.metrics))[after:], now
                for row in rows:
                    after += 1
                    yield f"id: {after}\ndata: {dumped(row)}\n\n"
            if (new := await asyncio.to_thread(run.state)) != state:
                state = new
                yield f"event: state\ndata: {dumped(state)}\n\n"
            await asyncio.sleep(POLL_SECONDS)

    def _kind(self, request: Request) -> str:
        kind = str(request.path_params["kind"])
        if kind not in KINDS:
            raise KeyError(kind)
        return kind


def read_filter(query: dict[str, str]) -> tuple[episodes.Filter, tuple[int, int] | None]:
    """The filter in a query, and where its page begins."""
    after = query.pop("after", None)
    numbers: dict[str, Callable[[str], Any]] = {"step": int, "low": float, "high": float}
    unknown = query.keys() - episodes.Filter.__dataclass_fields__.keys()
    if unknown:
        raise ValueError(f"unknown filter: {', '.join(sorted(unknown))}")
    chosen = episodes.Filter(**{name: numbers.get(name, str)(value) for name, value in query.items() if value})
    if after is None:
        return chosen, None
    step, _, line = after.partition(":")
    return chosen, (int(step), int(line))


class WithHeaders:
    """ASGI middleware: a content security policy on every answer, and the key where the server has one.

    The key is the password of HTTP basic authentication, which browsers ask for and keep.
    """

    def __init__(self, app: ASGIApp, key: str | None) -> None:
        self.app, self.key = app, key

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def sent(message: Message) -> None:
            if message["type"] == "http.response.start":
                own = [(name.lower().encode(), value.encode()) for name, value in HEADERS.items()]
                message = {**message, "headers": [*message.get("headers", ()), *own]}
            await send(message)

        if scope["type"] == "http" and self.key is not None and not _has_key(Request(scope), self.key):
            refusal = JSONResponse({"error": "this viewer needs a key"}, 401, {"WWW-Authenticate": "Basic"})
            return await refusal(scope, receive, sent)
        await self.app(scope, receive, sent)


def _has_key(request: Request, key: str) -> bool:
    scheme, _, given = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() != "basic":
        return hmac.compare_digest(given.encode(), key.encode())
    try:
        password = base64.b64decode(given, validate=True).partition(b":")[2]
    except (binascii.Error, ValueError):
        return False
    return hmac.compare_digest(password, key.encode())


async def _refusal(request: Request, error: HTTPException) -> Response:
    return JSONResponse({"error": error.detail}, error.status_code, error.headers)
