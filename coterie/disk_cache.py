"""Where converted models are kept, and how one is made only once and never halfway."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

from filelock import FileLock


def cache_folder() -> Path:
    """`$COTERIE_CACHE`, or `~/.cache/coterie`."""
    return Path(os.environ.get("COTERIE_CACHE") or "~/.cache/coterie").expanduser()


def build_once(folder: Path, make: Callable[[Path], None]) -> Path:
    """`folder`, filled by `make` if it is not there yet.

    `make` writes into a folder beside it that is renamed when complete: whoever is killed leaves no
    `folder`, and the next caller starts over. Callers at the same time wait for the first one.
    """
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(folder.with_name(folder.name + ".lock")):
        if not folder.is_dir():
            _make_beside(folder, make)
    return folder


def _make_beside(folder: Path, make: Callable[[Path], None]) -> None:
    part = folder.with_name(folder.name + ".part")
    shutil.rmtree(part, ignore_errors=True)  # of a caller that was killed; the lock says that nobody is at it
    part.mkdir()
    try:
        make(part)
        _flush(part)
        part.rename(folder)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _flush(folder: Path) -> None:
    # Without it a power cut could leave the renamed folder with empty files in it.
    for path in (*folder.iterdir(), folder):
        descriptor = os.open(path, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)
