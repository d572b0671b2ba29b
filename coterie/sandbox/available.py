"""Whether bubblewrap works here, and what to do about it where it does not."""

from __future__ import annotations

import os
import platform
import sys
import sysconfig
from functools import cache
from pathlib import Path

from coterie.errors import UserError
from coterie.sandbox import bubblewrap

PACKAGES = tuple(dict.fromkeys(sysconfig.get_paths()[kind] for kind in ("purelib", "platlib")))
# By what /etc/os-release calls a distribution, or one that it is like.
INSTALL = {
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


class SandboxMissing(UserError, RuntimeError):
    """Programs would run unprotected, and the config does not say `sandbox: unsafe`."""


@cache
def problem() -> str | None:
    """Why programs cannot be protected here, and how to mend it, in one line; None where bubblewrap works."""
    if sys.platform != "linux":
        return f"bubblewrap needs Linux, and this is {platform.system()}; use a Linux machine or container"
    try:
        complaint = bubblewrap.complaint(bubblewrap.command(PACKAGES, 1 << 20), python())
    except bubblewrap.ToolMissing as missing:
        return f"{missing}; {install_line(missing.package)}"
    if complaint is None:
        return None
    return f"bubblewrap does not work here ({' '.join(complaint.split())}); {FORBIDDEN}"


def install_line(package: str) -> str:
    """How a package is installed on the system at hand."""
    install = next((INSTALL[name] for name in distributions() if name in INSTALL), None)
    root = "" if os.geteuid() == 0 else "sudo "
    return f"`{root}{install} {package}` brings it" if install else f"install {package} with your package manager"


def distributions() -> list[str]:
    """What this Linux is, then what it is like: `ubuntu`, `debian`."""
    try:
        told = platform.freedesktop_os_release()
    except OSError:  # a system that has no such file
        return []
    return [told["ID"], *told.get("ID_LIKE", "").split()]


def python() -> list[str]:
    """Alone (-I), without packages that nobody asked for (-S): starts in half the time."""
    return [str(Path(sys.executable).resolve()), "-I", "-S", "-X", "utf8"]
