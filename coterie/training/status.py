"""status.json: the state of a run (running, finished, stopped, failed), and the cause if it stopped or failed."""

from __future__ import annotations

import json
import os
import socket
import time
import traceback
from pathlib import Path
from typing import Any, Literal

from coterie import __version__
from coterie.errors import UserError
from coterie.files import write_atomic

State = Literal["running", "finished", "stopped", "failed"]
LONGEST = 4000  # characters of a cause


class RunStatus:
    """Writes status.json. A killed process writes nothing: its state stays `running`, with a pid that is gone."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.started = round(time.time(), 3)

    def write(self, state: State, cause: str | None = None) -> None:
        """`cause`: why the run stopped or failed."""
        now, machine = round(time.time(), 3), {"pid": os.getpid(), "host": socket.gethostname()}
        status: dict[str, Any] = {"state": state, **machine, "version": __version__, "started": self.started}
        write_atomic(self.path, json.dumps(status | {"time": now, "cause": cause}, indent=2) + "\n")


def cause_of(error: BaseException) -> str:
    """The text of a user error, which needs no traceback; else the end of the traceback."""
    if isinstance(error, UserError):
        return str(error)[:LONGEST]
    return "".join(traceback.format_exception(error))[-LONGEST:]
