"""A run packed into small files: for machines that are short-lived and accept only files of a limited size.

`pack` writes config, metrics, the user's files and the latest checkpoint (adapters, optimizer, random state) as a tar
archive split into parts; `unpack` verifies and extracts them. A run resumed from there continues bit by bit.
"""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from collections.abc import Iterator
from pathlib import Path

from coterie.errors import UserError
from coterie.files import atomic_folder, reporting_write_errors
from coterie.training import checkpoint
from coterie.user_code import CODE_FOLDER

MANIFEST = "portable.json"
PART_BYTES = 16_000_000


class BadParts(UserError, ValueError):
    """A packed run with a part that is missing or damaged."""


def pack(run: Path, out: Path, part_bytes: int = PART_BYTES) -> list[Path]:
    """Write a run's latest state into the new folder `out`; the parts, in order."""
    saved = checkpoint.find(run)
    names = ["config.yaml", "metrics.jsonl", CODE_FOLDER, f"checkpoints/{saved.name}"]
    with reporting_write_errors(out), atomic_folder(out) as folder:
        parts = _Parts(folder, part_bytes)
        with tarfile.open(fileobj=parts, mode="w|", bufsize=min(part_bytes, 1 << 20)) as archive:
            for name in names:
                if (run / name).exists():
                    archive.add(run / name, name)
        parts.close()
        manifest = {"run": run.resolve().name, "step": int(saved.name), "parts": parts.sums}
        (folder / MANIFEST).write_text(json.dumps(manifest, indent=1))
    return [out / name for name in parts.sums]


def unpack(parts: Path, runs: Path) -> Path:
    """Extract a packed run into `runs`, under its own name; its folder. A folder that exists is never replaced."""
    manifest = json.loads((parts / MANIFEST).read_text())
    run = runs / manifest["run"]
    with reporting_write_errors(run), atomic_folder(run) as folder:
        joined = _Joined(_verified(parts, manifest["parts"]))
        with tarfile.open(fileobj=joined, mode="r|") as archive:
            archive.extractall(folder, filter="data")
        (folder / "latest").write_text(f"{manifest['step']:06d}")
    return run


def _verified(parts: Path, sums: dict[str, str]) -> Iterator[bytes]:
    for name, expected in sums.items():
        if not (parts / name).is_file():
            raise BadParts(f"{parts / name} is missing: all {len(sums)} parts of a packed run are needed")
        data = (parts / name).read_bytes()
        if hashlib.sha256(data).hexdigest() != expected:
            raise BadParts(f"{parts / name} is damaged: its checksum does not match {MANIFEST}; copy it again")
        yield data


class _Parts(io.RawIOBase):
    """A stream that is written as files of at most `size` bytes, with their SHA-256."""

    def __init__(self, folder: Path, size: int) -> None:
        self.folder, self.size = folder, size
        self.pending = bytearray()
        self.sums: dict[str, str] = {}

    def writable(self) -> bool:
        return True

    def write(self, data) -> int:  # type: ignore[no-untyped-def]  # anything with a buffer
        self.pending += data
        while len(self.pending) >= self.size:
            self._flush(self.size)
        return len(data)

    def close(self) -> None:
        if self.pending:
            self._flush(len(self.pending))
        super().close()

    def _flush(self, count: int) -> None:
        data, self.pending = bytes(self.pending[:count]), self.pending[count:]
        name = f"part-{len(self.sums):03d}"
        (self.folder / name).write_bytes(data)
        self.sums[name] = hashlib.sha256(data).hexdigest()


class _Joined(io.RawIOBase):
    """A stream that reads chunks one after the other."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self.chunks, self.rest = chunks, b""

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        while size < 0 or len(self.rest) < size:
            if (chunk := next(self.chunks, None)) is None:
                break
            self.rest += chunk
        size = len(self.rest) if size < 0 else size
        data, self.rest = self.rest[:size], self.rest[size:]
        return data
