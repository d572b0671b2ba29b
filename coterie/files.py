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


class FolderInUse(UserError):
    """Another process is at work in a folder."""


class BadOutputPath(UserError):
    """A file cannot be written where it was asked for."""


class WriteFailed(UserError, OSError):
    """The disk is full, or a folder is read-only."""


class BadRow(UserError, ValueError):
    """A line of a JSONL file that is no row."""


@contextmanager
def reporting_write_errors(path: Path) -> Iterator[None]:
    """What keeps `path` from being written is told in one line."""
    try:
        yield
    except (UserError, FileExistsError):
        raise
    except OSError as error:
        raise WriteFailed(f"{path} could not be written: {error.strerror or error}") from error


def write_atomic(path: Path, content: str | bytes) -> None:
    """Write a file so that a reader sees the old content or the new, never a part."""
    data = content.encode() if isinstance(content, str) else content
    with (
        reporting_write_errors(path),
        _temporary_sibling(path, lambda sibling: sibling.touch(exist_ok=False)) as temporary,
    ):
        temporary.write_bytes(data)
        _flush_to_disk(temporary)
        temporary.replace(path)
        _flush_to_disk(path.parent)


def check_output_path(option: str, file: Path | None) -> Path | None:
    """The file that an option names, if it can be written there: asked before there is anything to write."""
    if file is not None and (file.is_dir() or not file.parent.is_dir()):
        wrong = "this is a folder; name a file in it" if file.is_dir() else f"there is no folder {file.parent}"
        raise BadOutputPath(f"{option} {file}: {wrong}")
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
    with reporting_write_errors(path):
        path.rename(gone)
        shutil.rmtree(gone)


def append_line(path: Path, text: str) -> None:
    """Add one line to a file in one write, so that only the last line can ever be half there."""
    if "\n" in text:
        raise ValueError(f"{path}: one line was to be added, but the text has a line break: {text[:80]!r}")
    data = (text + "\n").encode()
    with reporting_write_errors(path), path.open("ab", buffering=0) as file:
        if file.write(data) != len(data):
            raise OSError("only a part of a line was; is the disk full?")


def filter_rows(path: Path, keep: Callable[[dict[str, Any]], bool]) -> list[dict[str, Any]]:
    """Keep the rows of a JSONL file that `keep` says yes to, and give them back; a half-written last line goes."""
    kept = [row for row in read_rows(path) if keep(row)]
    if path.exists():
        write_atomic(path, "".join(json.dumps(row) + "\n" for row in kept))
    return kept


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The whole rows of a JSONL file, each with its `step`; a file that is not there has none."""
    if not path.exists():
        return []
    *whole, _half = path.read_bytes().split(b"\n")
    return [_row(line, f"{path}, line {number}") for number, line in enumerate(whole, start=1)]


def _row(line: bytes, where: str) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except ValueError:
        row = None
    if not isinstance(row, dict) or not isinstance(row.get("step"), int):
        raise BadRow(
            f"{where} is no row of metrics: {line[:40].decode(errors='replace')!r}; delete the line, then resume"
        )
    return row


def numbered_paths(folder: Path, suffix: str = "") -> list[Path]:
    """What lies in a folder under a number, like 000120.jsonl, in the order of the numbers. Copies that somebody has
    put beside it under another name do not count."""
    found = [path for path in folder.glob(f"*{suffix}") if path.name.removesuffix(suffix).isdecimal()]
    return sorted(found, key=lambda path: int(path.name.removesuffix(suffix)))


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
def exclusive_lock(folder: Path) -> Iterator[None]:
    """A folder that no other process may write to meanwhile. Where there are no locks, nobody is refused."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise FolderInUse(f"{folder} is in use: another process is training in it") from None
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
