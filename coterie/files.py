"""Files that are there whole or not at all, whatever instant the process dies at."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from coterie.errors import UserError

TEMPORARY = ".tmp-"  # what starts with this is unfinished: readers pass over it


class InUse(UserError):
    """Another process is at work in a folder."""


class NoPlace(UserError):
    """A file cannot be written where it was asked for."""


def write_atomic(path: Path, content: str | bytes) -> None:
    """Write a file so that a reader sees the old content or the new, never a part."""
    data = content.encode() if isinstance(content, str) else content
    with _temporary_sibling(path, lambda sibling: sibling.touch(exist_ok=False)) as temporary:
        temporary.write_bytes(data)
        _flush_to_disk(temporary)
        temporary.replace(path)
        _flush_to_disk(path.parent)


def must_have_place(option: str, file: Path | None) -> Path | None:
    """The file that an option names, if it can be written there: asked before there is anything to write."""
    if file is not None and (file.is_dir() or not file.parent.is_dir()):
        wrong = "this is a folder; name a file in it" if file.is_dir() else f"there is no folder {file.parent}"
        raise NoPlace(f"{option} {file}: {wrong}")
    return file


@contextmanager
def atomic_folder(path: Path) -> Iterator[Path]:
    """A folder to fill, which takes its place at `path` when the block ends well and vanishes when it does not."""
    _refuse_existing(path)
    with _temporary_sibling(path, Path.mkdir) as temporary:
        yield temporary
        for inside in temporary.rglob("*"):
            _flush_to_disk(inside)
        _flush_to_disk(temporary)
        # A rename would silently replace an empty folder made meanwhile.
        _refuse_existing(path)
        temporary.rename(path)
        _flush_to_disk(path.parent)


def remove_folder(path: Path) -> None:
    """Delete a folder so that a reader finds it whole or not at all."""
    gone = path.parent / f"{TEMPORARY}{uuid.uuid4().hex}"
    path.rename(gone)
    shutil.rmtree(gone)


def append_line(path: Path, text: str) -> None:
    """Add one line to a file in one write, so that only the last line can ever be half there."""
    if "\n" in text:
        raise ValueError(f"{path}: one line was to be added, but the text has a line break: {text[:80]!r}")
    data = (text + "\n").encode()
    with path.open("ab", buffering=0) as file:
        if file.write(data) != len(data):
            raise OSError(f"{path}: only a part of the line could be written; is the disk full?")


def truncate_after(path: Path, keep: Callable[[dict[str, Any]], bool]) -> list[dict[str, Any]]:
    """Keep the rows of a JSONL file that `keep` says yes to, and give them back; a half-written last line goes.

    A file that is not there has no rows.
    """
    if not path.exists():
        return []
    *whole, _half = path.read_bytes().split(b"\n")
    kept = [(line, row) for line in whole if keep(row := json.loads(line))]
    write_atomic(path, b"".join(line + b"\n" for line, _ in kept))
    return [row for _, row in kept]


@contextmanager
def _temporary_sibling(path: Path, make: Callable[[Path], None]) -> Iterator[Path]:
    """What `make` makes beside `path`, locked while this process lives; gone afterwards unless it was renamed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    _sweep(path.parent)
    temporary = path.parent / f"{TEMPORARY}{uuid.uuid4().hex}"
    make(temporary)
    try:
        with _locked(temporary):
            yield temporary
    finally:
        _remove(temporary)


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """A folder that no other process may write to meanwhile. Where there are no locks, nobody is refused."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise InUse(f"{folder} is in use: another process is training in it") from None
    except OSError:
        pass
    try:
        yield
    finally:
        os.close(descriptor)


def _sweep(folder: Path) -> None:
    """Remove what killed processes left unfinished in `folder`, but nothing that a living one is working on."""
    for leftover in folder.glob(f"{TEMPORARY}*"):
        # Its owner may finish and rename it at any point here.
        with suppress(FileNotFoundError), _locked(leftover) as abandoned:
            if abandoned:
                _remove(leftover)


@contextmanager
def _locked(path: Path) -> Iterator[bool]:
    """Whether nobody else holds `path`. The kernel lets go of it when the holder dies, however it dies."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        yield _try_lock(descriptor)
    finally:
        os.close(descriptor)


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:  # held by another, or a filesystem without locks, where leftovers simply stay
        return False
    return True


def _flush_to_disk(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _refuse_existing(path: Path) -> None:
    if path.exists():
        raise FileExistsError(f"{path} is already there; it is never replaced")
