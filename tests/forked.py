"""Python processes that start at once: forked from a server that has imported torch, transformers and Coterie.

A new interpreter would spend five seconds on those imports. The server itself runs nothing, so that a fork loses no
threads. Not for tests of what is imported when.
"""

from __future__ import annotations

import atexit
import multiprocessing
import os
import runpy
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import chdir
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
_server = multiprocessing.get_context("forkserver")
_server.set_forkserver_preload(["coterie.cli.commands", "coterie.training.build", "coterie.models.base", "peft"])


class Python:
    """`python WORDS…` in a process of its own: `-m module`, `-c code` or a file, and its arguments.

    `streams` are file descriptors by the number that the process shall have them under; `before` is called in it first.
    """

    def __init__(
        self,
        words: Sequence[str],
        cwd: Path = ROOT,
        env: Mapping[str, str] | None = None,
        streams: Mapping[int, int] | None = None,
        before: Callable[[], Any] | None = None,
    ) -> None:
        # A Connection is what multiprocessing can hand a file descriptor on with.
        given = {number: Connection(os.dup(fd)) for number, fd in (streams or {}).items()}
        arguments = list(words), str(cwd), dict(os.environ if env is None else env), given, before
        self.process = _server.Process(target=_become, args=arguments)
        with chdir(ROOT):  # where the server, which starts with the first process, finds the code
            self.process.start()
        for stream in given.values():
            stream.close()

    def send_signal(self, number: int) -> None:
        assert self.process.pid is not None
        os.kill(self.process.pid, number)

    def poll(self) -> int | None:
        return self.process.exitcode

    def wait(self, seconds: float | None = None) -> int:
        """The exit code, or minus the signal that ended the process."""
        self.process.join(seconds)
        assert self.process.exitcode is not None, "it does not end"
        return self.process.exitcode

    def kill(self) -> None:
        self.process.kill()
        self.process.join()


def run_python(
    words: Sequence[str], cwd: Path = ROOT, env: Mapping[str, str] | None = None, seconds: float | None = None
) -> subprocess.CompletedProcess[str]:
    """As `subprocess.run([sys.executable, *words], capture_output=True, text=True, …)`."""
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as error:
        process = Python(words, cwd, env, {1: out.fileno(), 2: error.fileno()})
        try:
            code = process.wait(seconds)
        finally:
            process.kill()
        out.seek(0)
        error.seek(0)
        return subprocess.CompletedProcess(list(words), code, out.read(), error.read())


def _become(
    words: list[str],
    cwd: str,
    env: dict[str, str],
    streams: Mapping[int, Connection],
    before: Callable[[], Any] | None,
) -> None:
    import torch

    torch.set_num_threads(1)
    os.environ.clear()
    os.environ.update(env)
    os.chdir(cwd)
    for number, stream in streams.items():
        os.dup2(stream.fileno(), number)
        stream.close()
    sys.stdout, sys.stderr = open(1, "w", closefd=False), open(2, "w", buffering=1, closefd=False)  # noqa: SIM115
    if 0 in streams:  # multiprocessing gives a process no input
        sys.stdin = open(0, closefd=False)  # noqa: SIM115
    if before is not None:
        before()
    try:
        _run(words)
    finally:
        atexit._run_exitfuncs()  # which multiprocessing leaves out


def _run(words: list[str]) -> None:
    kind, *rest = words
    if kind == "-m":
        sys.argv = rest
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    elif kind == "-c":
        sys.argv = ["-c", *rest[1:]]
        exec(compile(rest[0], "<string>", "exec"), {"__name__": "__main__"})
    else:
        sys.argv = words
        sys.path.insert(0, str(Path(kind).resolve().parent))
        runpy.run_path(kind, run_name="__main__")
