"""Tasks of the data sets that Coterie knows by name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar

from coterie.data.files import read, read_prepared, source_of
from coterie.data.hub import from_hub
from coterie.data.row import Row, Source
from coterie.envs.base import TaskEnv
from coterie.limits import Count
from coterie.prompts import check, fill
from coterie.types import Split, Task


@dataclass(frozen=True)
class Known(TaskEnv):
    """Each split from a file, prepared or as its source has it, or from the hub where no file is named.

    A subclass names its sources and how its questions are asked.
    """

    training: ClassVar[Source]
    testing: ClassVar[Source]
    gaps: ClassVar[tuple[str, ...]] = ()  # what a prompt may use of a row beside {question}

    train: Path | None = None
    test: Path | None = None
    prompt: str = "{question}"
    limit: Count | None = None  # only the first rows of each split

    def __post_init__(self) -> None:
        check(self.prompt, ["question", *self.gaps], "prompt")

    def tasks(self, split: Split) -> list[Task]:
        return [self._task(row) for row in islice(self._rows(split), self.limit)]

    def fields(self, meta: Mapping[str, Any]) -> dict[str, str]:
        """What fills the gaps of a prompt."""
        return {name: str(meta[name]) for name in self.gaps}

    @classmethod
    def fitting(cls) -> list[str]:
        """The data sets whose prepared rows it can ask."""
        return list(dict.fromkeys((cls.training.name, cls.testing.name)))

    def _rows(self, split: Split) -> Iterator[Row]:
        path = self.train if split == "train" else self.test
        made_of = source_of(path) if path else None
        if path is not None and made_of is not None:
            if made_of not in self.fitting():
                fits = " or ".join(self.fitting())
                raise ValueError(f"{path} holds {made_of}, and {type(self).__name__} reads {fits}; rows reads any")
            yield from read_prepared(path)
            return
        source = self.training if split == "train" else self.testing
        place, stem = (path, path.stem) if path else (source.hubs[0].path, split)
        for number, raw in read(path) if path else from_hub(source, split):
            row = source.parse(raw, f"{source.name}/{stem}/{number}")
            if isinstance(row, str):
                raise ValueError(f"{place}, row {number}: {row}")
            yield row

    def _task(self, row: Row) -> Task:
        prompt = fill(self.prompt, {"question": row.question, **self.fields(row.meta)})
        return Task(row.id, prompt, row.answer, row.meta)
