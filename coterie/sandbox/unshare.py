"""Fallback without bubblewrap (`sandbox: unsafe`): PID, network and IPC namespaces by util-linux `unshare`."""

from __future__ import annotations

import shutil
import subprocess
from functools import cache

from coterie.sandbox.bubblewrap import NOBODY

# Mapped to an unprivileged uid inside the namespace; outside, its files still belong to the user.
OPTIONS = [f"--map-user={NOBODY}", f"--map-group={NOBODY}", "--pid", "--net", "--ipc", "--fork", "--kill-child"]
# PID 1 of a namespace cannot be killed from inside it, so PID 1 is a silent shell and the job its child.
INIT = ["-c", 'exec 3>&2 2>/dev/null; "$@" 2>&3 3>&-; exit $?', "sh"]


@cache
def command() -> list[str]:
    """The command line that goes before `python …`; empty where unprivileged namespaces do not work."""
    unshare, shell = shutil.which("unshare"), shutil.which("sh")
    if unshare is None or shell is None:
        return []
    words = [unshare, *OPTIONS, shell, *INIT]
    try:
        tried = subprocess.run([*words, "true"], capture_output=True, timeout=60)
    except subprocess.TimeoutExpired:
        return []
    return words if tried.returncode == 0 else []
