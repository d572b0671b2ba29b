"""How a Python is started under bubblewrap: no network, a read-only system, a private /tmp, nothing of home."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterable
from functools import cache
from pathlib import Path

SYSTEM = ("/usr", "/bin", "/lib", "/lib32", "/lib64", "/sbin")
# What shared libraries and clocks are looked up by; nothing of it is about a person.
LOOKUPS = ("/etc/ld.so.cache", "/etc/alternatives", "/etc/localtime")
NOBODY = "60713"  # a user that owns nothing; a limit on processes does not bind root
PLACE = "/tmp"
TOOLS = {"bwrap": "bubblewrap", "setpriv": "util-linux"}  # and the packages that have them


class ToolMissing(Exception):
    """A program that the sandbox is made with is not installed."""

    def __init__(self, tool: str) -> None:
        super().__init__(f"{tool} is not installed")
        self.package = TOOLS[tool]


def command(packages: Iterable[str], disk: int) -> list[str]:
    """The words before `python …`; raises ToolMissing where a tool is not installed."""
    bwrap = _tool("bwrap")
    words = [bwrap, "--die-with-parent", "--new-session", "--cap-drop", "ALL"]
    words += ["--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try", "--clearenv"]
    words += [*_system(), "--proc", "/proc", "--dev", "/dev", "--remount-ro", "/dev"]
    words += ["--perms", "1777", "--size", str(disk), "--tmpfs", PLACE]
    words += [*_shown([sys.base_prefix, *packages]), "--remount-ro", "/", "--chdir", PLACE]
    for name, value in environment(PLACE).items():
        words += ["--setenv", name, value]
    inner = ["--unshare-user", *_no_more_users(bwrap)]
    return words + (_as_nobody(bwrap, inner) if os.geteuid() == 0 else inner)


def environment(home: str) -> dict[str, str]:
    """All that a job finds in its environment. Threads of numpy's would count as processes."""
    return {"PATH": "/usr/bin:/bin", "HOME": home, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}


def complaint(words: list[str], python: list[str]) -> str | None:
    """Why it does not work here, or None: containers often forbid what bubblewrap needs."""
    try:
        run = subprocess.run([*words, *python, "-c", ""], capture_output=True, text=True, timeout=60)
    except subprocess.TimeoutExpired:
        return "bwrap did not start a Python within a minute"
    return None if run.returncode == 0 else run.stderr.strip() or f"bwrap ended with exit code {run.returncode}"


def _as_nobody(bwrap: str, inner: list[str]) -> list[str]:
    """Root lays out the file system, then leaves its powers behind.

    In two steps: a user namespace that root makes still counts its processes as root's, and an unprivileged user
    could not bind a Python that lies in root's home.
    """
    dropped = [_tool("setpriv"), "--reuid", NOBODY, "--regid", NOBODY, "--clear-groups", "--inh-caps=-all"]
    keep = ["--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]
    # The last process of a mount namespace takes it down before its end is told, for tens of milliseconds. With a
    # process namespace of its own, that is not the job.
    own = ["--die-with-parent", "--unshare-pid", *inner, "--dev-bind", "/", "/", "--chdir", PLACE]
    return [*keep, *dropped, bwrap, *own]


@cache
def _no_more_users(bwrap: str) -> list[str]:
    """A user namespace of a job's own would let it mount memory without limit. Before 0.8 bwrap cannot forbid it."""
    said = subprocess.run([bwrap, "--help"], capture_output=True, text=True, timeout=60)
    return ["--disable-userns"] if "--disable-userns" in said.stdout + said.stderr else []


def _system() -> list[str]:
    words: list[str] = []
    for path in map(Path, SYSTEM):
        if path.is_symlink():
            words += ["--symlink", os.readlink(path), str(path)]
        elif path.exists():
            words += ["--ro-bind", str(path), str(path)]
    for name in LOOKUPS:
        words += ["--ro-bind-try", name, name]
    return words


def _shown(folders: Iterable[str]) -> list[str]:
    """Python and its packages, wherever they lie; of the folders above them only the names."""
    words: list[str] = []
    for folder in dict.fromkeys(os.path.realpath(folder) for folder in folders):
        if Path(folder).is_relative_to("/usr"):
            continue
        for above in reversed(Path(folder).parents[:-1]):
            words += ["--perms", "0755", "--dir", str(above)]
        words += ["--ro-bind", folder, folder]
    return words


def _tool(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        raise ToolMissing(name)
    return found
