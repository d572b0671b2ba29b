"""What the processes of a job use together, as far as Linux tells from outside.

Looked at every now and then, so a job may go over its limit for a moment. What belongs to no process at that time, such
as a System V segment that none has attached, is not seen.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

PAGE = os.sysconf("SC_PAGE_SIZE")
BLOCK = 512  # bytes in which `stat` counts what a file holds
MEMORY_FILE = "/memfd:"
PROC = Path("/proc")


def family(first: int, most: int) -> list[int]:
    """A process and all that came of it.

    No more than a few over `most`: a bomb leaves no time to count.
    """
    found = [first] if sys.platform == "linux" else []
    for pid in found:
        if len(found) > most:
            break
        with suppress(OSError):  # gone meanwhile
            for task in (PROC / str(pid) / "task").iterdir():
                found += map(int, (task / "children").read_text().split())
    return found


def group(leader: int, most: int) -> list[int]:
    """The processes of a group, whoever their parent is now.

    No more than one over `most`.
    """
    found: list[int] = []
    if sys.platform == "linux":
        with os.scandir(PROC) as entries:
            for entry in entries:
                if entry.name.isdigit() and _group_of(entry.name) == leader:
                    found.append(int(entry.name))
                if len(found) > most:
                    break
    return found


def _group_of(pid: str) -> int | None:
    with suppress(OSError):  # gone meanwhile
        return int((PROC / pid / "stat").read_text().rpartition(")")[2].split()[2])
    return None


def uses_more(pids: Iterable[int], most: int) -> bool:
    """Whether processes hold more memory than this together, files in memory included.

    What they share counts once. Telling that takes a while, so a sum that is at least as much is looked at first.
    """
    own = list(pids)
    files = sum(dict(file for pid in own for file in _memory_files(pid)).values())
    if files + sum(map(_resident, own)) <= most:
        return False
    anonymous, shared = (sum(map(_share_of, own, [field] * len(own))) for field in ("Pss_Anon:", "Pss_Shmem:"))
    return anonymous + max(shared, files) > most  # what is mapped of a file in memory is told in both


def _resident(pid: int) -> int:
    with suppress(OSError):  # gone meanwhile
        return int((PROC / str(pid) / "statm").read_text().split()[1]) * PAGE
    return 0


def _share_of(pid: int, field: str) -> int:
    """Bytes of a process's memory; of those that several hold, its part."""
    with suppress(OSError):
        lines = map(str.split, (PROC / str(pid) / "smaps_rollup").read_text().splitlines())
        return sum(int(line[1]) * 1024 for line in lines if line[0] == field)
    return 0


def _memory_files(pid: int) -> list[tuple[tuple[int, int], int]]:
    """Files that lie in memory and have no name: which, and how large. Mapped or not, they are some process's files."""
    found = []
    with suppress(OSError):
        for file in (PROC / str(pid) / "fd").iterdir():
            with suppress(OSError):
                if os.readlink(file).startswith(MEMORY_FILE):
                    about = file.stat()
                    found.append(((about.st_dev, about.st_ino), about.st_blocks * BLOCK))
    return found
