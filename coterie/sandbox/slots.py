"""A machine-wide semaphore (file locks): all Coterie processes of a user together run one program per core.

Deadlines are wall-clock time: if every run used all cores by itself, correct programs would miss their deadlines.
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
MAX_WAIT = 10.0  # seconds; a job that gets no slot by then runs without one, because its grader has a deadline
TICK = 0.01  # seconds between polls
_searching = threading.Lock()  # held by the one thread of this process that looks for a slot


@contextmanager
def machine_slot(cancelled: threading.Event, slots: int = SLOTS, patience: float = MAX_WAIT) -> Iterator[None]:
    """Hold a slot, or none after `patience` seconds. The kernel frees it if this process is killed."""
    slot = _wait(cancelled, slots, time.monotonic() + patience)
    try:
        yield
    finally:
        if slot is not None:
            fcntl.flock(slot, fcntl.LOCK_UN)  # a fork of this process may have a copy of the open file
            os.close(slot)


def _wait(cancelled: threading.Event, slots: int, until: float) -> int | None:
    """The open, locked file of a slot; None if no slot was free in time, or the lock files cannot be created."""
    folder = slot_folder()
    if folder is None:
        return None
    # Trying every lock is slow on a machine with many cores, so one thread polls and the others wait for it.
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
    first = time.monotonic_ns() % slots  # not `random`: seeded code must see an unchanged state
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
    """The folder of the lock files, on a local disk: machines may share a home folder. None if another user owns it."""
    folder = Path(tempfile.gettempdir()) / f"coterie-slots-{os.getuid()}"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        return folder if folder.lstat().st_uid == os.getuid() and not folder.is_symlink() else None
    except OSError:
        return None
