"""What `coterie data prepare NAME --source FILE` does, for rows that an example writes itself."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from coterie.data.prepare import found_in, sort_out, write
from coterie.data.sources import SOURCES


def prepared(name: str, rows: Sequence[dict[str, Any]], out: Path) -> Path:
    """A folder with train.parquet and test.parquet; the last rows are for the test."""
    source = out.with_name(f"{out.name}-rows")
    for folder in (source, out):
        shutil.rmtree(folder, ignore_errors=True)
    source.mkdir(parents=True)
    held_out = max(1, len(rows) // 4)
    for file, some in (("train.jsonl", rows[:-held_out]), ("test.jsonl", rows[-held_out:])):
        (source / file).write_text("".join(json.dumps(row) + "\n" for row in some))
    write(name, sort_out(SOURCES[name], found_in(SOURCES[name], source)), out)
    return out
