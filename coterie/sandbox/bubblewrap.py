"""Start Python under bubblewrap (bwrap): own namespaces, no network, a read-only system, a private /tmp, no home.

`problem` says whether that works on this machine and, if not, how to fix it.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from coterie.errors import StopsRun

PACKAGES = tuple(dict.fromkeys(sysconfig.get_paths()[kind] for kind in ("purelib", "platlib")))
SYSTEM = ("/usr", "/bin", "/lib", "/lib32", "/lib64", "/sbin")
LOOKUPS = ("/etc/ld.so.cache", "/etc/alternatives", "/etc/localtime")  # for shared libraries and clocks
NOBODY = "60713"  # a uid that owns nothing; RLIMIT_NPROC does not bind root
WORKDIR = "/tmp"
TOOLS = {"bwrap": "bubblewrap", "setpriv": "util-linux"}  # tool → package
INSTALL = {  # by ID or ID_LIKE in /etc/os-release
    "debian": "apt-get install",
    "fedora": "dnf install",
    "rhel": "dnf install",
    "suse": "zypper install",
    "arch": "pacman -S",
    "alpine": "apk add",
}
FORBIDDEN = (
    "containers and kernels may forbid user namespaces: `docker run --security-opt seccomp=unconfined`, "
    "`sysctl kernel.unprivileged_userns_clone=1` or `sysctl kernel.apparmor_restrict_unprivileged_userns=0` allows them"
)


class SandboxMissing(StopsRun, RuntimeError):
    """Programs would run unprotected, and the config does not say `sandbox: unsafe`."""


class ToolMissing(Exception):
    """A program that the sandbox needs is not installed."""

    def __init__(self, tool: str) -> None:
        super().__init__(f"{tool} is not installed")
        self.package = TOOLS[tool]


@cache
def problem() -> str | None:
    """Why bubblewrap does not work here and how to fix it, in one line; None if it works."""
    if sys.platform != "linux":
        return f"bubblewrap needs Linux, and this is {platform.system()}; use a Linux machine or container"
    try:
        error = try_start(command(PACKAGES, 1 << 20), python())
    except ToolMissing as missing:
        return f"{missing}; {install_line(missing.package)}"
    if error is None:
        return None
    return f"bubblewrap does not work here ({' '.join(error.split())}); {FORBIDDEN}"


def install_line(package: str) -> str:
    """The command that installs a package on this Linux distribution."""
    install = next((INSTALL[name] for name in distributions() if name in INSTALL), None)
    sudo = "" if os.geteuid() == 0 else "sudo "
    return f"`{sudo}{install} {package}` installs it" if install else f"install {package} with your package manager"


def distributions() -> list[str]:
    """The ID of this Linux distribution, then those it derives from: `ubuntu`, `debian`."""
    try:
        release = platform.freedesktop_os_release()
    except OSError:  # there is no /etc/os-release
        return []
    return [release["ID"], *release.get("ID_LIKE", "").split()]


def python() -> list[str]:
    """The interpreter, isolated (-I) and without site-packages (-S), which halves its start-up time."""
    return [str(Path(sys.executable).resolve()), "-I", "-S", "-X", "utf8"]


def command(packages: Iterable[str], disk: int) -> list[str]:
    """The bwrap command line to put before `python …`; raises ToolMissing if a tool is not installed."""
    bwrap = _tool("bwrap")
    words = [bwrap, "--die-with-parent", "--new-session", "--cap-drop", "ALL"]
    words += ["--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try", "--clearenv"]
    words += [*_system(), "--proc", "/proc", "--dev", "/dev", "--remount-ro", "/dev"]
    words += ["--perms", "1777", "--size", str(disk), "--tmpfs", WORKDIR]
    words += [*_read_only([sys.base_prefix, *packages]), "--remount-ro", "/", "--chdir", WORKDIR]
    for name, value in environment(WORKDIR).items():
        words += ["--setenv", name, value]
    inner = ["--unshare-user", *_no_nested_namespaces(bwrap)]
    return words + (_as_nobody(bwrap, inner) if os.geteuid() == 0 else inner)


def environment(home: str) -> dict[str, str]:
    """A job's whole environment. One BLAS thread, because threads count towards the process limit."""
    return {"PATH": "/usr/bin:/bin", "HOME": home, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}


def try_start(words: list[str], python: list[str]) -> str | None:
    """Start an empty Python under bwrap: the error, or None. Containers often forbid the namespaces it needs."""
    try:
        run = subprocess.run([*words, *python, "-c", ""], capture_output=True, text=True, timeout=60)
    except subprocess.TimeoutExpired:
        return "bwrap did not start a Python within a minute"
    return None if run.returncode == 0 else run.stderr.strip() or f"bwrap ended with exit code {run.returncode}"


def _as_nobody(bwrap: str, inner: list[str]) -> list[str]:
    """As root: lay out the file system, then drop privileges with setpriv and a second bwrap.

    Two steps, because a user namespace made by root still counts its processes as root's, and an unprivileged user
    could not bind-mount a Python in root's home.
    """
    dropped = [_tool("setpriv"), "--reuid", NOBODY, "--regid", NOBODY, "--clear-groups", "--inh-caps=-all"]
    keep = ["--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]
    # Tearing down a mount namespace delays the exit of its last process by tens of milliseconds. A PID namespace of
    # its own makes that process the init, not the job.
    own = ["--die-with-parent", "--unshare-pid", *inner, "--dev-bind", "/", "/", "--chdir", WORKDIR]
    return [*keep, *dropped, bwrap, *own]


@cache
def _no_nested_namespaces(bwrap: str) -> list[str]:
    """Forbid nested user namespaces, in which a job could mount unlimited tmpfs. bwrap < 0.8 has no such option."""
    usage = subprocess.run([bwrap, "--help"], capture_output=True, text=True, timeout=60)
    return ["--disable-userns"] if "--disable-userns" in usage.stdout + usage.stderr else []


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


def _read_only(folders: Iterable[str]) -> list[str]:
    """Bind Python and its packages read-only; their parent folders are created empty."""
    words: list[str] = []
    for folder in dict.fromkeys(os.path.realpath(folder) for folder in folders):
        if Path(folder).is_relative_to("/usr"):
            continue
        for parent in reversed(Path(folder).parents[:-1]):
            words += ["--perms", "0755", "--dir", str(parent)]
        words += ["--ro-bind", folder, folder]
    return words


def _tool(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        raise ToolMissing(name)
    return found
