"""At most as many programs at once as the machine has cores, in all Coterie processes of a user together.

Deadlines are wall-clock time. Where several runs grade programs, each as many at once as there are cores, a right
program would miss its deadline.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

SLOTS = os.cpu_count() or 1
PATIENCE = 10.0  # seconds; a job that finds no slot by then runs without one, for a grader has a deadline too
TICK = 0.01  # seconds between two looks
_searching = threading.Lock()  # held by the one thread of this process that looks for a slot


@contextmanager
def machine_slot(cancelled: threading.Event, slots: int = SLOTS, patience: float = PATIENCE) -> Iterator[None]:
    """Hold one of the machine's slots. The kernel frees it if this process is killed."""
    slot = _wait(cancelled, slots, time.monotonic() + patience)
    try:
        yield
    finally:
        if slot is not None:
            fcntl.flock(slot, fcntl.LOCK_UN)  # a fork of this process may have a copy of the open file
            os.close(slot)


def _wait(cancelled: threading.Event, slots: int, until: float) -> int | None:
    """The open file of a slot that is locked now; None if there was none in time, or no place for such files."""
    folder = slot_folder()
    if folder is None:
        return None
    # On a machine of many cores, trying the lock of every slot is not cheap: one thread does it, the others wait.
    while not _searching.acquire(timeout=TICK):
        if time.monotonic() > until or cancelled.is_set():
            return None
    try:
        while (slot := _free_slot(folder, slots)) is None and time.monotonic() < until and not cancelled.is_set():
            time.sleep(TICK)
    except OSError:
        return None
    finally:
        _searching.release()
    return slot


def _free_slot(folder: Path, slots: int) -> int | None:
    first = time.monotonic_ns() % slots  # not `random`: its state belongs to those who seed it
    for number in range(first, first + slots):
        slot = os.open(folder / str(number % slots), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(slot, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(slot)
            if not isinstance(error, BlockingIOError):
                raise
        else:
            return slot
    return None


def slot_folder() -> Path | None:
    """On the machine's own disk: a home folder may be shared by machines. None if it is not this user's."""
    folder = Path(tempfile.gettempdir()) / f"coterie-slots-{os.getuid()}"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        return folder if folder.lstat().st_uid == os.getuid() and not folder.is_symlink() else None
    except OSError:
        return None
