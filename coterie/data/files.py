"""Read rows from jsonl, JSON and Parquet files; write and read prepared Parquet files."""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet

from coterie.data.row import Raw, Row
from coterie.prompts import lone_surrogate

KINDS = (".jsonl", ".json", ".parquet")
PREPARED = b"coterie"  # key in the Parquet schema's metadata; its value is the dataset's name
NOT_JSON = (ValueError, RecursionError)
COLUMNS = pyarrow.schema([(name, pyarrow.string()) for name in ("id", "question", "answer", "meta")])


def read(file: Path) -> Iterator[tuple[int, Raw]]:
    """The rows of a file, numbered from 1; raises at the first invalid one."""
    for number, row in parse_rows(file):
        if isinstance(row, str):
            raise ValueError(f"{file}, row {number}: {row}")
        for name, value in row.items():
            if problem := _unreadable(value):
                raise ValueError(f"{file}, row {number}: {name} {problem}")
        yield number, row


def parse_rows(file: Path) -> Iterator[tuple[int, Raw | str]]:
    """The rows of a file, numbered from 1; a string is the error of an invalid row. Blank lines are skipped."""
    if not file.is_file():
        raise ValueError(f"{file}: {'is a folder, not a file of rows' if file.is_dir() else 'no such file'}")
    if file.suffix == ".parquet":
        yield from enumerate(_table(file).to_pylist(), 1)
    elif file.suffix == ".jsonl":
        for number, line in enumerate(file.read_bytes().split(b"\n"), 1):
            if line.strip():
                yield number, _object(line)
    elif file.suffix == ".json":
        yield from enumerate(_list(file), 1)
    else:
        raise ValueError(f"{file}: must be a .jsonl, .json or .parquet file")


def is_prepared(file: Path) -> bool:
    """True if `coterie data prepare` wrote this file."""
    return source_of(file) is not None


def source_of(file: Path) -> str | None:
    """The dataset of a file that `coterie data prepare` wrote; None for other files."""
    if file.suffix != ".parquet" or not file.is_file():
        return None
    metadata = _open(file).schema_arrow.metadata or {}
    return metadata[PREPARED].decode() if PREPARED in metadata else None


def read_prepared(file: Path) -> Iterator[Row]:
    for raw in _table(file).to_pylist():
        yield Row(raw["id"], raw["question"], raw["answer"], json.loads(raw["meta"]))


def as_parquet(source: str, chosen: Iterable[Row]) -> bytes:
    """The content of a prepared file. Raises ValueError for rows that `storage_problem` rejects."""
    table = pyarrow.Table.from_pylist([as_columns(row) for row in chosen], schema=COLUMNS)
    buffer = io.BytesIO()
    pyarrow.parquet.write_table(table.replace_schema_metadata({PREPARED: source.encode()}), buffer, compression="zstd")
    return buffer.getvalue()


def as_columns(row: Row) -> dict[str, str | None]:
    meta = json.dumps(dict(row.meta), ensure_ascii=False, allow_nan=False)
    return {"id": row.id, "question": row.question, "answer": row.answer, "meta": meta}


def storage_problem(row: Row) -> str | None:
    """Why a row cannot be stored, or None."""
    try:
        "".join(text for text in as_columns(row).values() if text is not None).encode()
    except (TypeError, ValueError, RecursionError) as error:
        return f"cannot be stored: {error}"
    return None


def _open(file: Path) -> pyarrow.parquet.ParquetFile:
    try:
        return pyarrow.parquet.ParquetFile(file)
    except pyarrow.ArrowInvalid as error:
        raise ValueError(f"{file}: not Parquet: {error}") from None


def _table(file: Path) -> Any:
    return _open(file).read()


def _object(line: bytes) -> Raw | str:
    try:
        row = json.loads(line)
    except NOT_JSON as error:
        return f"not JSON: {error}"
    return row if isinstance(row, dict) else f"not an object: {line[:40].decode(errors='replace')}"


def _list(file: Path) -> list[Raw | str]:
    try:
        whole = json.loads(file.read_bytes())
    except NOT_JSON as error:
        raise ValueError(f"{file}: not JSON: {error}") from None
    if not isinstance(whole, list):
        raise ValueError(f"{file}: must be a list of objects")
    return [row if isinstance(row, dict) else f"not an object: {json.dumps(row)[:40]}" for row in whole]


def _unreadable(value: Any) -> str | None:
    """What is wrong with a text in a field that no tokenizer can read, or None."""
    todo = [value]  # not recursive: rows may be nested deeper than Python's stack
    while todo:
        one = todo.pop()
        if isinstance(one, str) and (problem := lone_surrogate(one)):
            return problem
        if isinstance(one, dict | list):
            todo += one.values() if isinstance(one, dict) else one
    return None
