"""Starts the server of a team."""

from __future__ import annotations

from collections.abc import Callable

import uvicorn

from coterie.rollout.playable import PlayableTeam
from coterie.serve.app import App
from coterie.web.server import bind, server_of, url_of

KEY_VARIABLE = "COTERIE_SERVE_KEY"  # environment variable with the server's key
MAX_QUEUE = 256  # requests
MAX_BODY = 2_000_000  # bytes


def server(team: PlayableTeam, key: str | None, max_queue: int = MAX_QUEUE, max_body: int = MAX_BODY) -> uvicorn.Server:
    """A server for a loaded team; `run(sockets=[…])` blocks until SIGTERM or SIGINT, and drains."""
    return server_of(App(team, key, max_queue, max_body).asgi(), key)


def serve(
    load: Callable[[], PlayableTeam], host: str, port: int, key: str | None, max_queue: int, max_body: int
) -> None:
    """Bind, load the team, and serve it until a signal comes."""
    bound = bind(host, port, key, KEY_VARIABLE)
    team = load()
    print(f"{team.name}, step {team.step}, on {url_of(bound, host)}/v1", flush=True)
    server(team, key, max_queue, max_body).run(sockets=[bound])
