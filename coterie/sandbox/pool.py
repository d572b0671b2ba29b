"""Many jobs at once, each in a sandbox of its own that was started before it came."""

from __future__ import annotations

import asyncio
import atexit
import marshal
import os
import threading
import warnings
import weakref
from collections import deque
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache
from pathlib import Path

from coterie.sandbox import available, bubblewrap, unshare
from coterie.sandbox.available import PACKAGES, SandboxMissing
from coterie.sandbox.record import Limits, Ran
from coterie.sandbox.worker import Worker, cpu_seconds

INSIDE = Path(__file__).with_name("inside.py").read_text()


class SandboxReduced(RuntimeWarning):
    """Code runs with less around it than it should."""


class Sandbox:
    """Runs Python scripts, each in a fresh process that cannot reach the network, your files or the next job.

    One process serves one job and is replaced: nothing that a job does to it outlives the job. `concurrency` of them
    wait ahead, so a small script starts within milliseconds. Jobs may import what is installed beside Coterie.

    Raises SandboxMissing where bubblewrap does not work. `reduced` does without it: a job still has limits, an empty
    environment and a folder of its own, but it can do all to your files that you can; and where the kernel keeps
    namespaces to itself, it can use the network and signal your processes.
    """

    def __init__(self, limits: Limits | None = None, concurrency: int = os.cpu_count() or 1, reduced: bool = False):
        self.limits = limits or Limits()
        self.reduced = reduced
        if not reduced and (problem := available.problem()):
            raise SandboxMissing(f"programs cannot be run safely: {problem}")
        around = unshare.command() if self.reduced else bubblewrap.command(PACKAGES, self.limits.disk)
        self._apart = bool(around)
        self._command = [*around, *available.python(), "-c", INSIDE]
        self._warm: deque[Worker] = deque()
        self._ahead = concurrency
        # Threads, not an event loop's processes: the pool outlives any one loop. And bubblewrap dies with the very
        # thread that started it, so it must be one that stays.
        self._threads = ThreadPoolExecutor(concurrency, thread_name_prefix="sandbox")
        _open.add(self)

    async def run(
        self,
        code: str,
        *,
        stdin: str | bytes = "",
        files: Mapping[str, str | bytes] | None = None,  # by name, put into its folder
        cwd: str = ".",  # within its folder
        limits: Limits | None = None,  # instead of the sandbox's own; what a disk holds stays
    ) -> Ran:
        """Run a script to its end or to its limits; waits for a free place first, never on the event loop."""
        limits = limits or self.limits
        given = stdin if isinstance(stdin, bytes) else stdin.encode("utf-8", "replace")
        request = self._request(code, files or {}, cwd, limits) + given
        stop = threading.Event()
        future = self._threads.submit(self._run, request, limits, stop)
        try:
            return await asyncio.wrap_future(future)
        finally:
            stop.set()  # whoever waited may have given up

    def close(self) -> None:
        """End the processes that wait; running jobs come to their end first."""
        self._threads.shutdown()
        while self._warm:
            self._warm.pop().close()
        _open.discard(self)

    def _run(self, request: bytes, limits: Limits, stop: threading.Event) -> Ran:
        try:
            worker = self._warm.popleft()
        except IndexError:
            worker = self._start()
        if len(self._warm) < self._ahead:
            self._warm.append(self._start())
        return worker.run(request, limits, stop)

    def _start(self) -> Worker:
        environment = bubblewrap.environment(bubblewrap.PLACE) if self.reduced else {}
        return Worker(self._command, environment, folder=self.reduced, apart=self._apart)

    def _request(self, code: str, files: Mapping[str, str | bytes], cwd: str, limits: Limits) -> bytes:
        for name in (*files, cwd):
            if os.path.isabs(name) or ".." in Path(name).parts:
                raise ValueError(f"{name}: a path within the job's folder is needed")
        job = {
            "code": code,
            "files": {name: text.encode() if isinstance(text, str) else text for name, text in files.items()},
            "cwd": cwd,
            "packages": list(PACKAGES),
            "memory": limits.memory,
            "disk": limits.disk,
            "cpu": cpu_seconds(limits),
            # Without bubblewrap it would count all that the user runs.
            "processes": 0 if self.reduced else limits.processes,
            # For when we are killed ourselves. Under bubblewrap a job dies with us.
            "alarm": cpu_seconds(limits) if self.reduced else 0,
        }
        packed = marshal.dumps(job)  # the same Python reads it, and it needs no import there
        return len(packed).to_bytes(8, "big") + packed


def files_in(folder: Path) -> dict[str, bytes]:
    """All files of a folder, to put into a job; without git's own."""
    found = (path for path in sorted(folder.rglob("*")) if path.is_file())
    names = ((path.relative_to(folder), path) for path in found)
    return {str(name): path.read_bytes() for name, path in names if ".git" not in name.parts}


_unsafe = False


def allow_unsafe(allowed: bool) -> None:
    """Whether `shared` may do without bubblewrap where it does not work: only if the config says `sandbox: unsafe`."""
    global _unsafe
    _unsafe = allowed


def unprotected() -> bool:
    """True if programs run without bubblewrap, because it does not work and the config allows that."""
    return _unsafe and available.problem() is not None


def shared() -> Sandbox:
    """The sandbox that graders and tools of this process share."""
    return _shared(unprotected())


@cache
def _shared(reduced: bool) -> Sandbox:
    if reduced:
        more = "" if unshare.command() else ", use the network and signal your processes"
        warnings.warn(
            f"sandbox: unsafe: {available.problem()}. Programs have limits of time, memory, processes and output, but "
            f"they can read and change your files{more}.",
            SandboxReduced,
            stacklevel=3,
        )
    return Sandbox(reduced=reduced)


_open: weakref.WeakSet[Sandbox] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    for sandbox in list(_open):
        with suppress(RuntimeError):
            sandbox.close()
