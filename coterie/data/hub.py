"""Rows from the Hugging Face hub, which keeps every data set as Parquet: `config/split/0000.parquet` on a branch."""

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


def from_hub(source: Source, wanted: Split) -> Iterator[tuple[int, Raw]]:
    """The rows of a split, numbered from 1."""
    if not source.hubs:
        raise ValueError(f"{source.name}: these rows are your own; --source FILE says where they are")
    parts = [(hub, split) for hub in source.hubs for split, ours in hub.splits.items() if ours == wanted]
    files = (file for hub, split in parts for file in fetched(hub, split))
    yield from enumerate((raw for _, raw in chain.from_iterable(map(read, files))), 1)


def fetched(hub: Hub, split: str) -> list[Path]:
    """The Parquet files of one of the hub's splits, in order; downloaded unless they are in the hub's cache."""
    pattern = f"{hub.config or '*'}/{split}/*.parquet"
    instead = "download it otherwise and name the files with --source"
    try:
        folder = snapshot_download(hub.path, repo_type="dataset", revision=BRANCH, allow_patterns=[pattern])
    except OSError as error:
        reason = str(error).strip().splitlines()[0]
        raise ValueError(f"{hub.path}: the Hugging Face hub did not give it ({reason}); {instead}") from error
    files = sorted(Path(folder).glob(pattern))
    if len({file.parent for file in files}) != 1:
        found = ", ".join(sorted({file.parent.parent.name for file in files})) or "none"
        raise ValueError(f"{hub.path}: one {pattern} is expected on the hub's branch {BRANCH}, not {found}; {instead}")
    return files
