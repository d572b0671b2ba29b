"""The process that the answers to a builtin grader are forked from: it imports the grader once for all of them.

Run as `python -P -m coterie.rewards.fork_server FD FUNCTION`. It has no threads, so that forking it is safe.
"""

from __future__ import annotations

import gc
import os
import pickle
import resource
import signal
import socket
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from multiprocessing.connection import Connection
from typing import Any, NoReturn

from coterie.rewards.load import load

ADDRESS_SPACE = 2 << 30  # bytes that one answer may use
# Parsers fill tables while they parse; a process that is forked after that finds them filled.
WARM_UP = {
    "coterie.rewards.math:math": [
        (r"\boxed{\frac{3}{4}x^{2} - \sqrt{2} + 1.5}", "1"),
        (r"\boxed{\left( -\frac{1}{2}, \infty \right) \cup \{1, 2\}}", "(1, 2)"),
        (r"\boxed{x = 3\pi, \quad y \le 2\sin(x)}", r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}"),
        (r"\boxed{\text{Paris}}", r"90^\circ"),
        (r"\boxed{x^2 + \frac{1}{2}}", "5"),
        (r"\boxed{2\sqrt{3}}", r"\frac{\sqrt{12}}{1}"),
        (r"\boxed{x^2 + y^2 = 1}", "x + y = 1"),
    ]
}


def serve(control: socket.socket, name: str) -> None:
    """Fork a process for each connection that arrives, one with every byte, until the parent is gone."""
    running: dict[int, Connection] = {}
    signal.signal(signal.SIGCHLD, lambda *_: _reap(running))
    while True:
        byte, handles, _, _ = socket.recv_fds(control, 1, 1)
        if not byte:
            return _end(running)
        connection = Connection(handles[0])
        try:
            function = _ready(name)
        except BaseException:  # whatever it is, the parent raises it: an error crosses to it as text
            connection.send(("failed", traceback.format_exc()))
            continue
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})  # until its connection is known
        pid = os.fork()
        if pid == 0:
            control.close()
            _answer(connection, function)
        running[pid] = connection
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})


def _end(running: dict[int, Connection]) -> None:
    """No answer outlives the parent."""
    for pid in list(running):
        os.kill(pid, signal.SIGKILL)


@cache
def _ready(name: str) -> Callable[..., Any]:
    function = load(name)
    for arguments in WARM_UP.get(name, ()):
        function(*arguments)
    gc.collect()
    gc.freeze()  # a collection in a forked process would copy all that it looks at
    return function


def _reap(running: dict[int, Connection]) -> None:
    """Tell the parent which signal ended a process; one that came to its end has told its value itself."""
    with suppress(ChildProcessError):  # a signal may arrive while the one before is handled
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            connection = running.pop(ended[0])
            if os.WIFSIGNALED(ended[1]):
                with suppress(OSError):  # the parent no longer waits
                    connection.send(("killed", os.WTERMSIG(ended[1])))
            connection.close()


def _answer(connection: Connection, function: Callable[..., Any]) -> NoReturn:
    """Call the function under its limits. The alarm's default action ends even code that never returns to Python."""
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
        connection.send(("started", os.getpid()))
        arguments, options, seconds, processor_seconds = pickle.loads(connection.recv_bytes())
        _bound(resource.RLIMIT_AS, ADDRESS_SPACE)
        if processor_seconds is not None:
            _bound(resource.RLIMIT_CPU, processor_seconds)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_REAL, seconds)
        connection.send(("value", function(*arguments, **options)))
    except (MemoryError, RecursionError):
        connection.send(("over", None))
    except BaseException:
        connection.send(("failed", traceback.format_exc()))
    finally:
        os._exit(0)


def _bound(kind: int, most: int) -> None:
    hard = resource.getrlimit(kind)[1]
    resource.setrlimit(kind, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])), sys.argv[2])
