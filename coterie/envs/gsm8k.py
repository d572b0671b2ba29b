"""GSM8K: school problems in words, with a number for an answer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from coterie.envs.base import TaskEnv
from coterie.envs.rows import Row, read
from coterie.rewards.answers import marked
from coterie.types import Split, Task


@dataclass(frozen=True)
class Gsm8k(TaskEnv):
    """Each split from a jsonl or Parquet file, or from the hub where no file is named."""

    train: str | None = None
    test: str | None = None

    def tasks(self, split: Split) -> list[Task]:
        path = self.train if split == "train" else self.test
        rows = hub(split) if path is None else read(path)
        return [_task(split, path or "openai/gsm8k", number, row) for number, row in rows]


def _task(split: Split, source: str, number: int, row: Row) -> Task:
    for name in ("question", "answer"):
        if name not in row:
            raise ValueError(f"{source}, row {number}: no field {name}; it has {', '.join(row)}")
    answer = marked(row["answer"])
    if answer is None:
        raise ValueError(f"{source}, row {number}: the answer does not end in `#### number`")
    return Task(f"gsm8k/{split}/{number}", row["question"], answer.replace(",", ""), {"solution": row["answer"]})


def hub(split: Split) -> Iterator[tuple[int, Row]]:
    """The rows of a split from the Hugging Face hub."""
    try:
        from datasets import load_dataset
    except ImportError:
        raise ImportError(
            "GSM8K from the hub needs the datasets package: pip install coterie[hub],"
            " or name a jsonl or Parquet file in env.train and env.test"
        ) from None
    yield from enumerate(load_dataset("openai/gsm8k", "main", split=split), 1)
