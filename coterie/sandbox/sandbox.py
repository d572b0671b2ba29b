"""A pool of warm sandbox processes. Each runs one job and is replaced, so that jobs share nothing."""

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
from contextlib import nullcontext, suppress
from functools import cache
from pathlib import Path

from coterie.sandbox import bubblewrap, unshare
from coterie.sandbox.bubblewrap import PACKAGES, SandboxMissing
from coterie.sandbox.limits import Limits, RunResult
from coterie.sandbox.process import SandboxProcess, cpu_limit
from coterie.sandbox.slots import SLOTS, machine_slot

BOOTSTRAP = Path(__file__).with_name("bootstrap.py").read_text()


class SandboxReduced(RuntimeWarning):
    """Code runs without bubblewrap."""


class Sandbox:
    """Runs Python scripts, each in a fresh process without access to the network, your files or other jobs.

    A process serves one job and is replaced: nothing that a job does to it outlives the job. `concurrency` processes
    are started ahead, so a small script starts within milliseconds. By default there is one per core, and the cores are
    shared with the sandboxes of other Coterie processes (`slots`). Jobs may import the packages installed beside
    Coterie.

    Raises SandboxMissing where bubblewrap does not work. `reduced` runs without it: a job still has limits, an empty
    environment and a folder of its own, but it can read and write your files; where the kernel forbids unprivileged
    namespaces, it can also use the network and signal your processes.
    """

    def __init__(self, limits: Limits | None = None, concurrency: int | None = None, reduced: bool = False):
        self.limits = limits or Limits()
        self.reduced = reduced
        if not reduced and (problem := bubblewrap.problem()):
            raise SandboxMissing(f"programs cannot be run safely: {problem}")
        wrapper = unshare.command() if self.reduced else bubblewrap.command(PACKAGES, self.limits.disk)
        self._isolated = bool(wrapper)
        self._command = [*wrapper, *bubblewrap.python(), "-c", BOOTSTRAP]
        self._warm: deque[SandboxProcess] = deque()
        self._shares_cores = concurrency is None
        self._concurrency = concurrency or SLOTS
        # Threads instead of asyncio subprocesses: the pool outlives any one event loop. And with --die-with-parent,
        # bwrap dies with the thread that started it, so that thread must stay alive.
        self._threads = ThreadPoolExecutor(self._concurrency, thread_name_prefix="sandbox")
        _open.add(self)

    async def run(
        self,
        code: str,
        *,
        stdin: str | bytes = "",
        files: Mapping[str, str | bytes] | None = None,  # by path within the job's folder
        cwd: str = ".",  # within the job's folder
        limits: Limits | None = None,  # instead of the sandbox's; its tmpfs keeps its size
    ) -> RunResult:
        """Run a script to its end or to its limits. Waits for a free process first, without blocking the event loop."""
        limits = limits or self.limits
        content = stdin if isinstance(stdin, bytes) else stdin.encode("utf-8", "replace")
        request = self._request(code, files or {}, cwd, limits) + content
        cancelled = threading.Event()
        future = self._threads.submit(self._run, request, limits, cancelled)
        try:
            return await asyncio.wrap_future(future)
        finally:
            cancelled.set()  # stops the job if the caller was cancelled

    def close(self) -> None:
        """Wait for running jobs, then end the warm processes."""
        self._threads.shutdown()
        while self._warm:
            self._warm.pop().close()
        _open.discard(self)

    def _run(self, request: bytes, limits: Limits, cancelled: threading.Event) -> RunResult:
        with machine_slot(cancelled) if self._shares_cores else nullcontext():
            try:
                process = self._warm.popleft()
            except IndexError:
                process = self._start()
            if len(self._warm) < self._concurrency:
                self._warm.append(self._start())
            return process.run(request, limits, cancelled)

    def _start(self) -> SandboxProcess:
        environment = bubblewrap.environment(bubblewrap.WORKDIR) if self.reduced else {}
        return SandboxProcess(self._command, environment, folder=self.reduced, isolated=self._isolated)

    def _request(self, code: str, files: Mapping[str, str | bytes], cwd: str, limits: Limits) -> bytes:
        for name in (*files, cwd):
            if os.path.isabs(name) or ".." in Path(name).parts:
                raise ValueError(f"{name}: must be a path within the job's folder")
        job = {
            "code": code,
            "files": {name: text.encode() if isinstance(text, str) else text for name, text in files.items()},
            "cwd": cwd,
            "packages": list(PACKAGES),
            "memory": limits.memory,
            "disk": limits.disk,
            "cpu": cpu_limit(limits),
            # Without bubblewrap, RLIMIT_NPROC would count all processes of the user.
            "processes": 0 if self.reduced else limits.processes,
            # Ends the job if this process is killed. Under bubblewrap, --die-with-parent does.
            "alarm": cpu_limit(limits) if self.reduced else 0,
        }
        packed = marshal.dumps(job)  # built in, and both ends run the same Python version
        return len(packed).to_bytes(8, "big") + packed


def files_in(folder: Path) -> dict[str, bytes]:
    """All files of a folder by relative path, without .git."""
    found = (path for path in sorted(folder.rglob("*")) if path.is_file())
    names = ((path.relative_to(folder), path) for path in found)
    return {str(name): path.read_bytes() for name, path in names if ".git" not in name.parts}


_unsafe = False


def allow_unsafe(allowed: bool) -> None:
    """Let `shared` run without bubblewrap where it does not work: the config has `sandbox: unsafe`."""
    global _unsafe
    _unsafe = allowed


def unprotected() -> bool:
    """True if programs run without bubblewrap: it does not work here, and the config allows that."""
    return _unsafe and bubblewrap.problem() is not None


def shared() -> Sandbox:
    """The sandbox that all graders and tools of this process share."""
    return _shared(unprotected())


@cache
def _shared(reduced: bool) -> Sandbox:
    if reduced:
        more = "" if unshare.command() else ", use the network and signal your processes"
        warnings.warn(
            f"sandbox: unsafe: {bubblewrap.problem()}. Programs have limits of time, memory, processes and output, but "
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
