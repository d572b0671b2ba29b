"""Where a worker's process is, and the message after its death: the last lines of its log, its node and memory."""

from __future__ import annotations

import os
import resource
import socket
from dataclasses import dataclass
from pathlib import Path

import ray
from ray.exceptions import RayError, RayTaskError

from coterie.errors import UserError

LINES = 8  # of a dead process's log


class ClusterFailed(UserError, RuntimeError):
    """The cluster cannot go on with a run."""


class LearnersLost(UserError, RuntimeError):
    """A learner worker has died or does not answer, or its weights are lost: all learners are to be restarted."""


@dataclass(frozen=True)
class Place:
    """The process of a worker."""

    pid: int
    node: str
    logs: Path  # the folder of Ray's logs on that node
    memory: float  # GB at its peak, when it had started

    def __str__(self) -> str:
        return f"process {self.pid} on {self.node}, {self.memory:.1f} GB after its start"

    def last_lines(self) -> str:
        """The end of the process's log, if it is on this machine, else where the log is."""
        files = sorted(self.logs.glob(f"worker-*-{self.pid}.err"))
        if self.node != socket.gethostname() or not files:
            return f"its log is {self.node}:{self.logs}/worker-*-{self.pid}.err"
        lines = [line for line in files[-1].read_text(errors="replace").splitlines() if not line.startswith(":")]
        shown = "".join(f"\n    {line}" for line in lines[-LINES:])
        return f"its last lines:{shown}" if shown else f"its log, {files[-1]}, is empty"


def here() -> Place:
    """The place of this process."""
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    logs = Path(ray._private.worker.global_worker.node.get_logs_dir_path())
    return Place(os.getpid(), socket.gethostname(), logs, memory)


def describe_loss(name: str, place: Place | None, error: RayError | None) -> str:
    """The message about a lost worker; `error` None: it did not answer in time."""
    reason = "did not answer in time and was ended" if error is None else f"was lost: {_reason(error)}"
    return f"{name} {reason}" if place is None else f"{name} ({place}) {reason}; {place.last_lines()}"


def _reason(error: RayError) -> str:
    """The line of Ray's error message that names the cause."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    words = ("memory", "exit", "node", "died", "")
    why = next((line for word in words for line in lines if word in line.lower()), type(error).__name__)
    return why.partition(" Some common causes include")[0]


def raised_by_code(error: RayError) -> BaseException | None:
    """The exception that a worker's own code raised; None if a process or an object is gone."""
    if not isinstance(error, RayTaskError) or isinstance(error.cause, RayError):
        return None
    return error.cause if isinstance(error.cause, BaseException) else error
