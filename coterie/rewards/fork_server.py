"""Fork server of a builtin grader: imports the grader once, then forks a process for each answer.

Run as `python -P -m coterie.rewards.fork_server FD FUNCTION`. Single-threaded, so that forking is safe.
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

from coterie.rewards.reward_function import load

ADDRESS_SPACE = 2 << 30  # bytes: RLIMIT_AS of one answer
# Calls made before the first fork: parsers fill caches, which forked processes then share.
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
    """Fork a process for each connection received on the control socket, until the parent is gone."""
    running: dict[int, Connection] = {}
    signal.signal(signal.SIGCHLD, lambda *_: _reap(running))
    while True:
        byte, handles, _, _ = socket.recv_fds(control, 1, 1)
        if not byte:
            return _kill_all(running)
        connection = Connection(handles[0])
        try:
            function = _ready(name)
        except BaseException:  # sent as text; the parent raises it
            connection.send(("failed", traceback.format_exc()))
            continue
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})  # until the process is in `running`
        pid = os.fork()
        if pid == 0:
            control.close()
            _answer(connection, function)
        running[pid] = connection
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})


def _kill_all(running: dict[int, Connection]) -> None:
    """Kill all forked processes: the parent is gone."""
    for pid in list(running):
        os.kill(pid, signal.SIGKILL)


@cache
def _ready(name: str) -> Callable[..., Any]:
    function = load(name)
    for arguments in WARM_UP.get(name, ()):
        function(*arguments)
    gc.collect()
    gc.freeze()  # garbage collection in a fork would copy every page it touches
    return function


def _reap(running: dict[int, Connection]) -> None:
    """Send the parent the signal that killed a process; one that returned has sent its value itself."""
    with suppress(ChildProcessError):  # SIGCHLD may arrive while the last one is handled
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            connection = running.pop(ended[0])
            if os.WIFSIGNALED(ended[1]):
                with suppress(OSError):  # the parent has stopped waiting
                    connection.send(("killed", os.WTERMSIG(ended[1])))
            connection.close()


def _answer(connection: Connection, function: Callable[..., Any]) -> NoReturn:
    """Call the function under rlimits and an alarm. SIGALRM's default action kills even C code that never returns."""
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
        connection.send(("started", os.getpid()))
        arguments, options, seconds, cpu_seconds = pickle.loads(connection.recv_bytes())
        _set_rlimit(resource.RLIMIT_AS, ADDRESS_SPACE)
        if cpu_seconds is not None:
            _set_rlimit(resource.RLIMIT_CPU, cpu_seconds)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_REAL, seconds)
        connection.send(("value", function(*arguments, **options)))
    except (MemoryError, RecursionError):
        connection.send(("over", None))
    except BaseException:
        connection.send(("failed", traceback.format_exc()))
    finally:
        os._exit(0)


def _set_rlimit(kind: int, most: int) -> None:
    hard = resource.getrlimit(kind)[1]
    resource.setrlimit(kind, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])), sys.argv[2])
