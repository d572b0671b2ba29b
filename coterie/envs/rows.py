"""A user's own questions and answers, from a jsonl, JSON or Parquet file."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from coterie.data.files import is_prepared, read, read_prepared
from coterie.data.row import Raw, other_fields
from coterie.envs.base import TaskEnv
from coterie.limits import Count
from coterie.types import Split, Task


@dataclass(frozen=True)
class Rows(TaskEnv):
    """Tasks from a file; fields other than question and answer become `task.meta`.

    Files written by `coterie data prepare` need no field names.
    """

    train: Path  # training rows, jsonl or Parquet
    test: Path | None = None  # held-out rows, for evaluation
    question: str = "question"  # the name of the field with the question
    # the name of the field with the reference answer; rows need none with a reward that does not compare (verifier)
    answer: str = "answer"
    limit: Count | None = None  # only the first rows of each file; null: all

    def tasks(self, split: Split) -> list[Task]:
        path = self.train if split == "train" else self.test
        if path is None:
            raise ValueError("test: evaluation needs held-out tasks; name a file")
        if is_prepared(path):
            return [Task(row.id, row.question, row.answer, row.meta) for row in islice(read_prepared(path), self.limit)]
        return [self._task(path, number, raw) for number, raw in islice(read(path), self.limit)]

    def _task(self, path: Path, number: int, raw: Raw) -> Task:
        for name in (self.question, *([self.answer] if self.needs_answers else ())):
            if name not in raw:
                raise ValueError(f"{path}, row {number}: no field {name}; it has {', '.join(raw)}")
            if raw[name] is None or raw[name] == "":
                raise ValueError(f"{path}, row {number}: {name} is empty; fill it in, or leave the row out")
        meta = other_fields(raw, self.question, self.answer)
        answer = raw.get(self.answer)  # may be missing with a reward that does not compare
        return Task(f"{path.stem}/{number}", str(raw[self.question]), None if answer == "" else answer, meta)
