"""The data of an example: a folder written by `coterie data prepare`, or a few built-in rows prepared likewise."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from coterie.data.prepare import read_source, split_rows, write
from coterie.data.sources import SOURCES


def data_and_changes(name: str, rows: Sequence[dict[str, Any]], out: Path) -> tuple[Path, list[str]]:
    """The folder given first on the command line, or else the example's built-in rows; and the overrides after it."""
    words = sys.argv[1:]
    if words and "=" not in words[0]:
        return Path(words[0]), words[1:]
    return prepared(name, rows, out), words


def prepared(name: str, rows: Sequence[dict[str, Any]], out: Path) -> Path:
    """Do what `coterie data prepare NAME --source FOLDER --out OUT` does; the last rows are the test split."""
    source = out.with_name(f"{out.name}-rows")
    for folder in (source, out):
        shutil.rmtree(folder, ignore_errors=True)
    source.mkdir(parents=True)
    held_out = max(1, len(rows) // 4)
    for file, some in (("train.jsonl", rows[:-held_out]), ("test.jsonl", rows[-held_out:])):
        (source / file).write_text("".join(json.dumps(row) + "\n" for row in some))
    write(name, split_rows(SOURCES[name], read_source(SOURCES[name], source)), out)
    return out
