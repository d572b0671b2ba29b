"""Show datasets in a terminal: lists, examples and statistics."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from statistics import median

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from coterie.data.files import is_prepared, read_prepared
from coterie.data.prepare import Prepared
from coterie.data.row import Source
from coterie.errors import did_you_mean

MAX_SHOWN = 600  # characters of a text


def sources(known: Iterable[Source]) -> Iterator[RenderableType]:
    table = _table("name", "what it is", "reward", "on the hub")
    for source in known:
        hubs = "\n".join(dict.fromkeys(hub.path for hub in source.hubs))
        table.add_row(source.name, source.about, source.reward, hubs)
    table.add_row("reasoning_gym:NAME", "generated tasks of reasoning-gym", "native", "")
    yield table


def prepared(folder: Path, result: Prepared) -> Iterator[RenderableType]:
    """How many rows were written to which file, and why rows were rejected."""
    yield Text(str(folder), style="bold")
    table = _table("file", "rows", "why")
    for split in result.splits:
        for (own, place, why), count in result.origins.items():
            if own == split:
                table.add_row(f"{split}.parquet", str(count), Text(f"of {place}, {why}"))
    for reason, count in result.reasons.most_common(8):
        table.add_row("rejected.jsonl", str(count), Text(reason))
    yield table


def first(path: Path, count: int) -> Iterator[RenderableType]:
    """The first tasks of each file."""
    for file in _files(path):
        for row in islice(read_prepared(file), count):
            yield Text(f"{file.name}  {row.id}", style="bold")
            yield Text(f"{_cut(row.question)}\n→ {_cut(str(row.answer))}")
            yield Text(f"{_cut(json.dumps(dict(row.meta), ensure_ascii=False))}\n", style="dim")


def statistics(path: Path) -> Iterator[RenderableType]:
    """The number of tasks, their lengths, and the most frequent answers."""
    table = _table("file", "tasks", "question words", "answer words", "distinct answers", "most common")
    for file in _files(path):
        rows = list(read_prepared(file))
        answers = Counter(str(row.answer) for row in rows)
        most = answers.most_common(3)
        common = ", ".join(f"{_cut(' '.join(answer.split()), 24)} {count / len(rows):.0%}" for answer, count in most)
        table.add_row(
            file.name, str(len(rows)), _lengths(row.question for row in rows), _lengths(map(str, answers)),
            str(len(answers)), Text(common),
        )  # fmt: skip
    yield table


def unknown(name: str, names: Sequence[str]) -> str:
    return f"{name}: unknown; there are {', '.join(names)}{did_you_mean(name, names)}"


def _table(*columns: str) -> Table:
    table = Table(box=None, header_style="dim", padding=(0, 2, 0, 0))
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def _lengths(texts: Iterable[str]) -> str:
    counts = [len(text.split()) for text in texts]
    return f"{median(counts):g}, at most {max(counts)}"


def _cut(text: str, most: int = MAX_SHOWN) -> str:
    shown = text.strip()
    return shown if len(shown) <= most else f"{shown[:most]}…"


def _files(path: Path) -> list[Path]:
    """The prepared files at a path."""
    files = [path] if path.is_file() else [path / f"{split}.parquet" for split in ("train", "test")]
    found = [file for file in files if is_prepared(file)]
    if not found:
        problem = "was not" if path.is_file() else "has no file" if path.is_dir() else "no such file or folder"
        raise ValueError(f"{path}: {problem}" + (" written by `coterie data prepare`" if path.exists() else ""))
    return found
