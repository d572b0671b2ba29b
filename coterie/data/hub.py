"""Download rows from the Hugging Face hub, which has every dataset as Parquet: `config/split/0000.parquet`."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from huggingface_hub import snapshot_download

from coterie.data.files import read
from coterie.data.row import Hub, Raw, Source

if TYPE_CHECKING:
    from coterie.types import Split

BRANCH = "refs/convert/parquet"


def from_hub(source: Source, split: Split) -> Iterator[tuple[int, Raw]]:
    """The rows of a split, numbered from 1."""
    if not source.hubs:
        raise ValueError(f"{source.name}: not on the hub; name your file with --source FILE")
    parts = [(hub, theirs) for hub in source.hubs for theirs, ours in hub.splits.items() if ours == split]
    files = (file for hub, theirs in parts for file in download(hub, theirs))
    yield from enumerate((raw for _, raw in chain.from_iterable(map(read, files))), 1)


def download(hub: Hub, split: str) -> list[Path]:
    """The Parquet files of a split, in order, from the local hub cache or downloaded."""
    pattern = f"{hub.config or '*'}/{split}/*.parquet"
    instead = "download the files by other means and name them with --source"
    try:
        folder = snapshot_download(hub.path, repo_type="dataset", revision=BRANCH, allow_patterns=[pattern])
    except OSError as error:
        reason = str(error).strip().splitlines()[0]
        raise ValueError(f"{hub.path}: download from the Hugging Face hub failed ({reason}); {instead}") from error
    files = sorted(Path(folder).glob(pattern))
    if len({file.parent for file in files}) != 1:
        found = ", ".join(sorted({file.parent.parent.name for file in files})) or "none"
        raise ValueError(f"{hub.path}: expected one {pattern} on the hub's branch {BRANCH}, found {found}; {instead}")
    return files
