"""Memory, CPU time and processes of a job, read from /proc.

Sampled, so a job may exceed a limit for a moment. Memory that no process has attached, such as a System V segment, is
not counted.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

PAGE = os.sysconf("SC_PAGE_SIZE")
BLOCK = 512  # bytes per block of `stat`
TICKS = os.sysconf("SC_CLK_TCK")  # per second of CPU time
MEMORY_FILE = "/memfd:"
PROC = Path("/proc")
READINGS = 3  # in a row that must show an excess of memory


def process_tree(root: int, most: int) -> list[int]:
    """A process and its descendants. Stops counting shortly above `most`: a fork bomb grows while it is counted."""
    found = [root] if sys.platform == "linux" else []
    for pid in found:
        if len(found) > most:
            break
        with suppress(OSError):  # it has exited
            for task in (PROC / str(pid) / "task").iterdir():
                found += map(int, (task / "children").read_text().split())
    return found


def process_group(leader: int, most: int) -> list[int]:
    """The processes of a process group, also those whose parent has exited; stops one above `most`."""
    found: list[int] = []
    if sys.platform == "linux":
        with os.scandir(PROC) as entries:
            for entry in entries:
                if entry.name.isdigit() and _group_of(entry.name) == leader:
                    found.append(int(entry.name))
                if len(found) > most:
                    break
    return found


def cpu_seconds(pids: Iterable[int]) -> float:
    """CPU time, user and system, that living processes have used so far."""
    ticks = 0
    for pid in pids:
        with suppress(OSError):  # it has exited
            user, system = (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()[11:13]
            ticks += int(user) + int(system)
    return ticks / TICKS


def _group_of(pid: str) -> int | None:
    with suppress(OSError):  # it has exited
        return int((PROC / pid / "stat").read_text().rpartition(")")[2].split()[2])
    return None


def uses_more_memory(pids: Iterable[int], most: int) -> bool:
    """True if processes use more memory than this together, memfd files included.

    Shared pages count once (PSS). Processes are read one after another: if one exits meanwhile, the PSS of those read
    later grows and its pages count twice. An excess must therefore show in several readings in a row.
    """
    own = list(pids)
    return all(_reads_more_memory(own, most) for _ in range(READINGS))


def _reads_more_memory(own: list[int], most: int) -> bool:
    """One reading. Reading PSS is slow, so RSS, an upper bound, is checked first."""
    files = sum(dict(file for pid in own for file in _memory_files(pid)).values())
    if files + sum(map(_resident, own)) <= most:
        return False
    anonymous, shared = (sum(map(_pss, own, [field] * len(own))) for field in ("Pss_Anon:", "Pss_Shmem:"))
    return anonymous + max(shared, files) > most  # a mapped memfd is in both `shared` and `files`


def _resident(pid: int) -> int:
    with suppress(OSError):  # it has exited
        return int((PROC / str(pid) / "statm").read_text().split()[1]) * PAGE
    return 0


def _pss(pid: int, field: str) -> int:
    """Proportional set size in bytes: a page that n processes share counts 1/n."""
    with suppress(OSError):
        lines = map(str.split, (PROC / str(pid) / "smaps_rollup").read_text().splitlines())
        return sum(int(line[1]) * 1024 for line in lines if line[0] == field)
    return 0


def _memory_files(pid: int) -> list[tuple[tuple[int, int], int]]:
    """Open memfd files by (device, inode), and their sizes, whether mapped or not."""
    found = []
    with suppress(OSError):
        for file in (PROC / str(pid) / "fd").iterdir():
            with suppress(OSError):
                if os.readlink(file).startswith(MEMORY_FILE):
                    about = file.stat()
                    found.append(((about.st_dev, about.st_ino), about.st_blocks * BLOCK))
    return found
