"""Packs a run into files of limited size, to move it between short-lived machines.

`pack` writes config, metrics, the user's files and the latest checkpoint (adapters, optimizer, random state) as a tar
archive split into parts; `unpack` verifies and extracts them. A run resumed from there continues bit by bit.
"""

from __future__ import annotations

import hashlib
import json
import tarfile
import tempfile
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
    """Write a run's config, metrics, code and latest checkpoint into the new folder `out`; returns the parts."""
    saved = checkpoint.find(run)
    sums: dict[str, str] = {}
    with reporting_write_errors(out), atomic_folder(out) as folder, tempfile.TemporaryFile(dir=folder) as whole:
        with tarfile.open(fileobj=whole, mode="w") as archive:
            for name in ("config.yaml", "metrics.jsonl", CODE_FOLDER, f"checkpoints/{saved.name}"):
                if (run / name).exists():
                    archive.add(run / name, name)
        whole.seek(0)
        while data := whole.read(part_bytes):
            name = f"part-{len(sums):03d}"
            (folder / name).write_bytes(data)
            sums[name] = hashlib.sha256(data).hexdigest()
        manifest = {"run": run.resolve().name, "step": int(saved.name), "parts": sums}
        (folder / MANIFEST).write_text(json.dumps(manifest, indent=1))
    return [out / name for name in sums]


def unpack(parts: Path, runs: Path) -> Path:
    """Extract a packed run into `runs`, under its own name; returns its folder. An existing one is never replaced."""
    manifest = json.loads((parts / MANIFEST).read_text())
    run = runs / manifest["run"]
    if run.exists():
        raise FileExistsError(
            f"{run} already exists; `--resume {run}` continues it, and `--out FOLDER` unpacks elsewhere"
        )
    with reporting_write_errors(run), atomic_folder(run) as folder, tempfile.TemporaryFile(dir=folder) as whole:
        for name, expected in manifest["parts"].items():
            whole.write(_verified(parts / name, expected))
        whole.seek(0)
        with tarfile.open(fileobj=whole) as archive:
            archive.extractall(folder, filter="data")
        (folder / "latest").write_text(f"{manifest['step']:06d}")
    return run


def _verified(part: Path, expected: str) -> bytes:
    if not part.is_file():
        raise BadParts(f"{part} is missing: all parts of a packed run are needed")
    data = part.read_bytes()
    if hashlib.sha256(data).hexdigest() != expected:
        raise BadParts(f"{part} is damaged: its checksum does not match {MANIFEST}; copy it again")
    return data
