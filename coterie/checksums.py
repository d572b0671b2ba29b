"""Checksums of the files in a folder, in the form that `sha256sum --check SHA256SUMS` reads."""

from __future__ import annotations

import hashlib
from pathlib import Path

from coterie.errors import ModelError

SUMS = "SHA256SUMS"


def write_checksums(folder: Path) -> None:
    """Sum up every file in a folder."""
    files = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    (folder / SUMS).write_text("".join(f"{_sum(folder / name)}  {name}\n" for name in files))


def verify_checksums(folder: Path, part: Path | None = None) -> None:
    """Refuse a folder of which a file is gone or is not what was written; `part`: look only at what is inside it."""
    if not (folder / SUMS).is_file():
        raise ModelError(f"{folder / SUMS} is gone: whether the files beside it are whole cannot be known")
    for line in (folder / SUMS).read_text(errors="replace").splitlines():
        expected, _, name = line.partition("  ")
        file = folder / name
        if part is not None and part not in file.parents:
            continue
        if not file.is_file():
            raise ModelError(f"{file} is gone")
        if _sum(file) != expected:
            raise ModelError(f"{file} is damaged: its checksum is not the one in {SUMS}")


def verify_saved_adapter(folder: Path) -> None:
    """Refuse a damaged adapter of a checkpoint; one that lies elsewhere has no checksums."""
    checkpoint = folder.parent.parent  # which holds policies/<name>
    if (checkpoint / SUMS).is_file():
        verify_checksums(checkpoint, folder)


def _sum(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()
