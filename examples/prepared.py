"""The data of an example: a folder that `coterie data prepare` has written, or a few rows of its own, prepared so."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from coterie.data.prepare import found_in, sort_out, write
from coterie.data.sources import SOURCES


def data_and_changes(name: str, rows: Sequence[dict[str, Any]], out: Path) -> tuple[Path, list[str]]:
    """The folder that stands first on the command line, else the example's own rows; and the changes after it."""
    words = sys.argv[1:]
    if words and "=" not in words[0]:
        return Path(words[0]), words[1:]
    return prepared(name, rows, out), words


def prepared(name: str, rows: Sequence[dict[str, Any]], out: Path) -> Path:
    """What `coterie data prepare NAME --source FOLDER --out OUT` does; the last rows are for the test."""
    source = out.with_name(f"{out.name}-rows")
    for folder in (source, out):
        shutil.rmtree(folder, ignore_errors=True)
    source.mkdir(parents=True)
    held_out = max(1, len(rows) // 4)
    for file, some in (("train.jsonl", rows[:-held_out]), ("test.jsonl", rows[-held_out:])):
        (source / file).write_text("".join(json.dumps(row) + "\n" for row in some))
    write(name, sort_out(SOURCES[name], found_in(SOURCES[name], source)), out)
    return out
