"""The ASGI app of a served team.

    GET  /v1/models               the team under its name, and each role under `name/role`
    POST /v1/chat/completions     OpenAI's chat completions, whole or as server-sent events
    GET  /health                  name and step; needs no key
    GET  /metrics                 for Prometheus

Errors have OpenAI's form, `{"error": {message, type, param, code}}`.
"""

from __future__ import annotations

import asyncio
import json
import traceback
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp

from coterie.errors import UserError, did_you_mean
from coterie.rollout.playable import PlayableTeam
from coterie.serve.chat_request import ChatRequest, read_request
from coterie.serve.engine_thread import EngineThread, QueueFull
from coterie.serve.errors import HANDLERS, ApiError, TooLong
from coterie.serve.replies import Piece, Reply, RoleReply, TeamReply, chunk, completion, head, merged, token_logprobs
from coterie.web.json_bodies import BadRequest
from coterie.web.prometheus import CONTENT_TYPE, RequestMetrics, label
from coterie.web.requests import read_body, require_json, require_key
from coterie.web.server import Counted

COMPLETIONS = "/v1/chat/completions"
HEARTBEAT = 10.0  # seconds of silence after which a stream sends a comment, so that proxies keep it open


class App:
    """The handlers of one team's server."""

    def __init__(self, team: PlayableTeam, key: str | None, max_queue: int, max_body: int) -> None:
        self.team, self.key, self.max_body = team, key, max_body
        self.thread = EngineThread(max_queue)
        self.metrics = RequestMetrics("coterie_serve", timed=[COMPLETIONS])
        self.tokens: Counter[tuple[str, str]] = Counter()  # by model and kind
        self.cancelled = 0
        self.models = {f"{team.name}/{role}": role for role in team.own_roles}

    def asgi(self) -> ASGIApp:
        routes = [
            Route("/v1/models", self.list_models, methods=["GET"]),
            Route("/v1/models/{model:path}", self.show_model, methods=["GET"]),
            Route(COMPLETIONS, self.complete, methods=["POST"]),
            Route("/health", self.health, methods=["GET"]),
            Route("/metrics", self.prometheus, methods=["GET"]),
        ]
        app = Starlette(routes=routes, exception_handlers=HANDLERS, lifespan=self._lifespan)
        return Counted(app, self.metrics, [route.path for route in routes])

    @asynccontextmanager
    async def _lifespan(self, app: Starlette) -> AsyncIterator[None]:
        yield
        await asyncio.to_thread(self.thread.close)

    async def health(self, request: Request) -> Response:
        return JSONResponse({"status": "ok", "model": self.team.name, "step": self.team.step})

    async def prometheus(self, request: Request) -> Response:
        require_key(request, self.key)
        return PlainTextResponse(self.metrics.text(self._own_metrics()), media_type=CONTENT_TYPE)

    async def list_models(self, request: Request) -> Response:
        require_key(request, self.key)
        return JSONResponse({"object": "list", "data": [_model_object(name) for name in self._names()]})

    async def show_model(self, request: Request) -> Response:
        require_key(request, self.key)
        return JSONResponse(_model_object(self._known(request.path_params["model"])))

    async def complete(self, request: Request) -> Response:
        require_key(request, self.key)
        require_json(request)
        try:
            chat_request = read_request(await read_body(request, self.max_body))
        except BadRequest as error:
            raise ApiError(400, str(error), param=error.param) from error
        job = self._job(chat_request)
        await self._submitted(request, job.prepare())
        if chat_request.stream:
            pieces: asyncio.Queue[Piece] = asyncio.Queue()
            loop = asyncio.get_running_loop()
            work = self._start(job.run(lambda piece: _send(loop, pieces, piece)))
            return StreamingResponse(self._events(chat_request, job, pieces, work), media_type="text/event-stream")
        found: list[Piece] = []
        reply = await self._submitted(request, job.run(found.append))
        self._count(chat_request.model, reply)
        logprobs = merged([self._logprobs(chat_request, job, piece) for piece in found])
        return JSONResponse(completion(chat_request, "".join(piece.text for piece in found), reply, logprobs))

    def _job(self, chat_request: ChatRequest) -> RoleReply | TeamReply:
        name = self._known(chat_request.model)
        if name != self.team.name:
            return RoleReply(self.team, self.models[name], chat_request)
        instead = f"ask a role, such as {next(iter(self.models), None)}"
        if chat_request.logprobs:
            raise ApiError(400, f"logprobs: the team's answer is no single sample; {instead}", param="logprobs")
        if any(message["role"] == "system" for message in chat_request.conversation):
            raise ApiError(400, f"messages: the team's roles have their own system texts; {instead}", param="messages")
        return TeamReply(self.team, chat_request)

    def _names(self) -> list[str]:
        return [*([] if self.team.needs_world else [self.team.name]), *self.models]

    def _known(self, name: str) -> str:
        names = self._names()
        if name in names:
            return name
        why = f"there is no model {name!r}; there is {', '.join(names)}{did_you_mean(name, names)}"
        if name == self.team.name:
            why = f"the team {name} plays in a world of its environment, which a message cannot give; ask a role"
        raise ApiError(404, why, "model_not_found", "model")

    def _start(self, work: Any) -> asyncio.Future[Any]:
        try:
            return asyncio.wrap_future(self.thread.submit(work))
        except QueueFull as error:
            raise ApiError(429, f"{error}; try again", "queue_full") from error

    async def _submitted(self, request: Request, work: Any) -> Any:
        """The result of a coroutine on the engine's loop; cancelled if the client disconnects."""
        running = self._start(work)
        gone = asyncio.create_task(_disconnected(request))
        try:
            await asyncio.wait({running, gone}, return_when=asyncio.FIRST_COMPLETED)
            if not running.done():
                self.cancelled += 1
                raise ApiError(499, "the client disconnected")
            return running.result()
        except (TooLong, TimeoutError, UserError) as error:
            raise ApiError.of(error) from error
        finally:
            running.cancel()
            gone.cancel()

    async def _events(
        self, chat_request: ChatRequest, job: Any, pieces: asyncio.Queue[Piece], work: asyncio.Future[Any]
    ) -> AsyncIterator[str]:
        """The chunks of a stream as server-sent events. If the client disconnects, this generator is closed."""
        start, finished = head(chat_request, "chat.completion.chunk"), False
        try:
            yield _event(chunk(start, {"role": "assistant", "content": ""}, None))
            while (piece := await _next(pieces, work)) is not None:
                logprobs = self._logprobs(chat_request, job, piece)
                silent = not piece.text and not piece.ids
                yield ": waiting\n\n" if silent else _event(chunk(start, {"content": piece.text}, logprobs))
            reply: Reply = await work
            finished = True
            self._count(chat_request.model, reply)
            yield _event(chunk(start, {}, None, reply.finish_reason))
            if chat_request.stream_options is not None and chat_request.stream_options.include_usage:
                yield _event(start | {"choices": [], "usage": reply.usage})
        except (TooLong, TimeoutError, UserError) as error:
            yield _event(ApiError.of(error).body())
        except Exception as error:  # the status line has been sent, so the error is sent in the stream
            traceback.print_exc()
            yield _event(ApiError(500, f"{type(error).__name__}: {error}").body())
        finally:
            if not work.done():
                self.cancelled += not finished
                work.cancel()
        yield "data: [DONE]\n\n"

    def _logprobs(self, chat_request: ChatRequest, job: Any, piece: Piece) -> dict[str, Any] | None:
        return token_logprobs(self.team, job.policy, piece) if chat_request.logprobs else None

    def _count(self, model: str, reply: Reply) -> None:
        self.tokens[model, "prompt"] += reply.prompt_tokens
        self.tokens[model, "completion"] += reply.completion_tokens

    def _own_metrics(self) -> Iterator[str]:
        metric = self.metrics.metric
        tokens = {f"{label('model', model)},{label('kind', kind)}": n for (model, kind), n in self.tokens.items()}
        yield from metric("tokens_total", "counter", "Tokens by model, of prompts and of replies.", tokens)
        yield from metric("running", "gauge", "Requests that wait for the engine or run.", self.thread.running)
        yield from metric("cancelled_total", "counter", "Requests whose client left.", self.cancelled)
        yield from metric("info", "gauge", "The team.", {label("name", self.team.name): 1})


async def _next(pieces: asyncio.Queue[Piece], work: asyncio.Future[Any]) -> Piece | None:
    """The next piece; an empty one after HEARTBEAT seconds without one; None when all pieces were returned."""
    getting = asyncio.ensure_future(pieces.get())
    try:
        await asyncio.wait({getting, work}, timeout=HEARTBEAT, return_when=asyncio.FIRST_COMPLETED)
        if getting.done():
            return getting.result()
    finally:
        getting.cancel()
    if not work.done():
        return Piece("")
    return None if pieces.empty() else pieces.get_nowait()


def _send(loop: asyncio.AbstractEventLoop, pieces: asyncio.Queue[Piece], piece: Piece) -> None:
    """Pass a piece from the engine's thread to the server's loop, which may be closed by now."""
    if piece.text or piece.ids:
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(pieces.put_nowait, piece)


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _model_object(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "coterie"}


def _event(data: dict[str, Any]) -> str:
    return f"data: {json.dumps(data)}\n\n"
