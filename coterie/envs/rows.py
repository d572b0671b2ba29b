"""A user's own questions and answers, from a file."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow.parquet

from coterie.envs.base import TaskEnv
from coterie.types import Split, Task

Row = dict[str, Any]


@dataclass(frozen=True)
class Rows(TaskEnv):
    """Tasks from a jsonl or Parquet file; fields that are neither question nor answer become `task.meta`."""

    train: str
    test: str | None = None
    question: str = "question"  # the field's name
    answer: str = "answer"
    limit: int | None = None  # only the first rows of each file

    def tasks(self, split: Split) -> list[Task]:
        path = self.train if split == "train" else self.test
        if path is None:
            raise ValueError("env.test: held-out tasks are asked for, but no file is named")
        return [self._task(path, number, row) for number, row in islice(read(path), self.limit)]

    def _task(self, path: str, number: int, row: Row) -> Task:
        for name in (self.question, self.answer):
            if name not in row:
                raise ValueError(f"{path}, row {number}: no field {name}; it has {', '.join(row)}")
        rest = {name: value for name, value in row.items() if name not in (self.question, self.answer)}
        return Task(f"{Path(path).stem}/{number}", str(row[self.question]), row[self.answer], rest)


def read(path: str) -> Iterator[tuple[int, Row]]:
    """The rows of a jsonl or Parquet file with their numbers, from 1; blank lines count but give nothing."""
    file = Path(path).expanduser()
    if not file.is_file():
        raise ValueError(f"{path}: no such file")
    if file.suffix == ".parquet":
        yield from enumerate(pyarrow.parquet.read_table(file).to_pylist(), 1)
    elif file.suffix == ".jsonl":
        for number, line in enumerate(file.read_text("utf-8").split("\n"), 1):
            if line.strip():
                yield number, _object(path, number, line)
    else:
        raise ValueError(f"{path}: a .jsonl or .parquet file is needed")


def _object(path: str, number: int, line: str) -> Row:
    try:
        row = json.loads(line)
    except json.JSONDecodeError as error:
        raise ValueError(f"{path}, row {number}: not JSON: {error}") from None
    if not isinstance(row, dict):
        raise ValueError(f"{path}, row {number}: an object is needed, not {line[:40]}")
    return row
