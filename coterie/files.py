"""Crash-safe files: atomic renames, file locks, checksums (SHA256SUMS), JSONL rows, plans of work, the disk cache."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from filelock import FileLock

from coterie.errors import ModelError, UserError

TEMPORARY = ".tmp-"  # the prefix of unfinished files and folders, which readers skip
SUMS = "SHA256SUMS"


class FolderInUse(UserError):
    """Another process holds the lock of a folder."""


class BadOutputPath(UserError):
    """An output file cannot be written at the given path."""


class WriteFailed(UserError, OSError):
    """The disk is full, or a folder is read-only."""


class BadRow(UserError, ValueError):
    """A line of a JSONL file that is not a row."""


@contextmanager
def reporting_write_errors(path: Path) -> Iterator[None]:
    """Raise OSErrors as a one-line WriteFailed that names `path`."""
    try:
        yield
    except (UserError, FileExistsError):
        raise
    except OSError as error:
        raise WriteFailed(f"{path} could not be written: {error.strerror or error}") from error


def write_atomic(path: Path, content: str | bytes) -> None:
    """Write a file by an atomic rename: a reader sees the old content or the new, never a part."""
    data = content.encode() if isinstance(content, str) else content
    with reporting_write_errors(path), _temporary_sibling(path, partial(Path.touch, exist_ok=False)) as temporary:
        temporary.write_bytes(data)
        _fsync(temporary)
        temporary.replace(path)
        _fsync(path.parent)


def check_output_path(option: str, file: Path | None) -> Path | None:
    """The file that an option names; rejects a path that cannot be written before any work is done."""
    if file is not None and (file.is_dir() or not file.parent.is_dir()):
        wrong = "is a folder; name a file in it" if file.is_dir() else f"the folder {file.parent} does not exist"
        raise BadOutputPath(f"{option} {file}: {wrong}")
    return file


@contextmanager
def atomic_folder(path: Path) -> Iterator[Path]:
    """A temporary folder to fill, renamed to `path` if the block succeeds and deleted if it raises."""
    _refuse_existing(path)
    with _temporary_sibling(path, Path.mkdir) as temporary:
        yield temporary
        for inside in temporary.rglob("*"):
            _fsync(inside)
        _fsync(temporary)
        # A rename would silently replace an empty folder that was created meanwhile.
        _refuse_existing(path)
        temporary.rename(path)
        _fsync(path.parent)


def remove_folder(path: Path) -> None:
    """Delete a folder atomically: rename it first, so that a reader finds it whole or not at all."""
    renamed = path.parent / f"{TEMPORARY}{uuid.uuid4().hex}"
    with reporting_write_errors(path):
        path.rename(renamed)
        shutil.rmtree(renamed)


def cache_folder() -> Path:
    """The disk cache: `$COTERIE_CACHE`, or `~/.cache/coterie`."""
    return Path(os.environ.get("COTERIE_CACHE") or "~/.cache/coterie").expanduser()


def build_once(folder: Path, build: Callable[[Path], None]) -> Path:
    """`folder`, filled by `build` if it does not exist yet. Concurrent callers wait for the first one."""
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(folder.with_name(folder.name + ".lock")):
        if not folder.is_dir():
            with atomic_folder(folder) as temporary:
                build(temporary)
    return folder


def append_line(path: Path, text: str) -> None:
    """Append a line in one write, so that only the last line can ever be incomplete."""
    if "\n" in text:
        raise ValueError(f"{path}: a single line is expected, but the text has a line break: {text[:80]!r}")
    data = (text + "\n").encode()
    with reporting_write_errors(path), path.open("ab", buffering=0) as file:
        if file.write(data) != len(data):
            raise OSError("the line was written only in part; is the disk full?")


def filter_rows(path: Path, keep: Callable[[dict[str, Any]], bool]) -> list[dict[str, Any]]:
    """Rewrite a JSONL file with the rows that `keep` accepts, and return them; an incomplete last line is dropped."""
    rows = [row for row in read_rows(path) if keep(row)]
    if path.exists():
        write_atomic(path, "".join(json.dumps(row) + "\n" for row in rows))
    return rows


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The complete rows of a JSONL file, each with its `step`; none if the file does not exist."""
    return [_row(line, f"{path}, line {number}") for number, line in enumerate(complete_lines(path), start=1)]


def complete_lines(path: Path) -> list[bytes]:
    """The lines of a file that others append to, without an incomplete last one; none if the file does not exist."""
    return path.read_bytes().split(b"\n")[:-1] if path.exists() else []


def _row(line: bytes, where: str) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except ValueError:
        row = None
    if not isinstance(row, dict) or not isinstance(row.get("step"), int):
        start = line[:40].decode(errors="replace")
        raise BadRow(f"{where} is not a row of metrics: {start!r}; delete the line, then resume")
    return row


def numbered_paths(folder: Path, suffix: str = "") -> list[Path]:
    """The files or folders named by a number, like 000120.jsonl, in numeric order; other names are skipped."""
    found = [path for path in folder.glob(f"*{suffix}") if path.name.removesuffix(suffix).isdecimal()]
    return sorted(found, key=lambda path: int(path.name.removesuffix(suffix)))


@contextmanager
def exclusive_lock(folder: Path) -> Iterator[None]:
    """Lock a folder against other processes. Without effect on filesystems without locks."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise FolderInUse(f"{folder} is in use by another process") from None
    except OSError:
        pass
    try:
        yield
    finally:
        os.close(descriptor)


def write_checksums(folder: Path) -> None:
    """Write the SHA-256 of every file in a folder, in the format of `sha256sum --check SHA256SUMS`."""
    files = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    (folder / SUMS).write_text("".join(f"{file_hash(folder / name)}  {name}\n" for name in files))


def verify_checksums(folder: Path, part: Path | None = None) -> None:
    """Reject a folder in which a file is missing or damaged; `part`: check only files inside it."""
    if not (folder / SUMS).is_file():
        raise ModelError(f"{folder / SUMS} is missing: the files beside it cannot be verified")
    for line in (folder / SUMS).read_text(errors="replace").splitlines():
        expected, _, name = line.partition("  ")
        file = folder / name
        if part is not None and part not in file.parents:
            continue
        if not file.is_file():
            raise ModelError(f"{file} is missing")
        if file_hash(file) != expected:
            raise ModelError(f"{file} is damaged: its checksum does not match {SUMS}")


def verify_saved_adapter(folder: Path) -> None:
    """Reject a damaged adapter of a checkpoint; adapters elsewhere have no checksums."""
    checkpoint = folder.parent.parent  # which holds policies/<name>
    if (checkpoint / SUMS).is_file():
        verify_checksums(checkpoint, folder)


def file_hash(file: Path) -> str:
    """The SHA-256 of a file, in hex digits."""
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


@contextmanager
def _temporary_sibling(path: Path, make: Callable[[Path], None]) -> Iterator[Path]:
    """A temporary file or folder beside `path`, locked while this process lives; removed unless it was renamed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    _sweep(path.parent)
    temporary = path.parent / f"{TEMPORARY}{uuid.uuid4().hex}"
    make(temporary)
    try:
        with _locked(temporary):
            yield temporary
    finally:
        _remove(temporary)


def _sweep(folder: Path) -> None:
    """Remove temporary files of killed processes; those of living processes are locked."""
    for leftover in folder.glob(f"{TEMPORARY}*"):
        # The owner may finish and rename it at any point here.
        with suppress(FileNotFoundError), _locked(leftover) as abandoned:
            if abandoned:
                _remove(leftover)


@contextmanager
def _locked(path: Path) -> Iterator[bool]:
    """Try to lock `path`; yields whether it succeeded. The kernel releases the lock when its holder dies."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        yield _try_lock(descriptor)
    finally:
        os.close(descriptor)


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:  # locked by another process, or a filesystem without locks, where leftovers stay
        return False
    return True


def _fsync(path: Path) -> None:
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
        raise FileExistsError(f"{path} already exists; it is never replaced")


class OtherPlan(UserError):
    """Resumable work that was begun with other options."""


def require_same_plan(
    file: Path, plan: Mapping[str, Any], what: str, remedy: str, may_differ: Collection[str] = ()
) -> None:
    """Store the plan (options) of new work, or compare it with the stored one: resumed work needs the same options."""
    expected = json.loads(json.dumps(plan, default=str))
    if not file.is_file():
        write_atomic(file, json.dumps(expected, indent=2))
        return
    found = json.loads(file.read_bytes())
    for key in {**found, **expected}:
        if key not in may_differ and found.get(key) != expected.get(key):
            raise OtherPlan(
                f"{what} was begun with {key}={found.get(key)!r}, not {expected.get(key)!r}: use the same options to "
                f"continue, or {remedy} to begin again"
            )


def flat(tree: Any, prefix: str = "") -> dict[str, Any]:
    """Nested data by dotted keys; an empty mapping is a value."""
    if not isinstance(tree, Mapping) or not tree:
        return {prefix: tree}
    inner = (flat(value, f"{prefix}.{name}" if prefix else str(name)) for name, value in tree.items())
    return {key: value for part in inner for key, value in part.items()}
