"""The child side of a worker of `grader_pool`: answers calls one by one until its parent is gone.

Run as `python -P -m coterie.rewards.worker_process FD`. Imports nothing heavy, so that it starts quickly.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import pickle
import sys
import threading
from multiprocessing.connection import Connection
from queue import SimpleQueue
from typing import Any

from coterie.errors import failure_text
from coterie.rewards.plain_values import plain_value
from coterie.rewards.reward_function import load


def serve(connection: Connection) -> None:
    """Answer requests on the main thread, where a function may use signals."""
    requests: SimpleQueue[bytes] = SimpleQueue()
    threading.Thread(target=_receive, args=(connection, requests), daemon=True).start()
    while True:
        _answer(connection, requests.get())


def _receive(connection: Connection, requests: SimpleQueue[bytes]) -> None:
    """Exit when the parent has died, even in the middle of a call that never ends."""
    try:
        while True:
            requests.put(connection.recv_bytes())
    except (EOFError, OSError):
        os._exit(0)


def _answer(connection: Connection, request: bytes) -> None:
    try:
        name, arguments, options, unsafe = pickle.loads(request)
        if unsafe or "coterie.sandbox" in sys.modules:
            from coterie.sandbox import allow_unsafe  # few functions need it

            allow_unsafe(unsafe)
        function = load(name)
        connection.send(("loaded", None))  # the deadline starts now
        value = function(*arguments, **options)
        if inspect.isawaitable(value):
            value = asyncio.run(_wait(value))
        connection.send(("value", plain_value(value)))
    except BaseException as error:  # sent as text; the parent raises it
        connection.send(("failed", failure_text(error)))


async def _wait(value: Any) -> Any:
    return await value


if __name__ == "__main__":
    serve(Connection(int(sys.argv[1])))
