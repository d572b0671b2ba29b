"""Where bubblewrap does not work: processes and a network of its own, as far as the kernel lets anybody have them."""

from __future__ import annotations

import shutil
import subprocess
from functools import cache

from coterie.sandbox.bubblewrap import NOBODY

# To itself it is nobody, so that it has no powers in there; its files are still its user's.
WORDS = [f"--map-user={NOBODY}", f"--map-group={NOBODY}", "--pid", "--net", "--ipc", "--fork", "--kill-child"]
# The first process of such a namespace cannot be killed from within: it is not the job, but a shell that keeps silent.
FIRST = ["-c", 'exec 3>&2 2>/dev/null; "$@" 2>&3 3>&-; exit $?', "sh"]


@cache
def command() -> list[str]:
    """The words before `python …`; none where it does not work."""
    unshare, shell = shutil.which("unshare"), shutil.which("sh")
    if unshare is None or shell is None:
        return []
    words = [unshare, *WORDS, shell, *FIRST]
    try:
        tried = subprocess.run([*words, "true"], capture_output=True, timeout=60)
    except subprocess.TimeoutExpired:
        return []
    return words if tried.returncode == 0 else []
