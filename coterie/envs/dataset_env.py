"""Environments of datasets that are registered by name: GSM8K, MATH, AIME, HotpotQA, ANLI."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar

from coterie.data.anli import ANLI
from coterie.data.files import read, read_prepared, source_of
from coterie.data.gsm8k import GSM8K
from coterie.data.hotpotqa import HOTPOTQA, article
from coterie.data.hub import from_hub
from coterie.data.math import AIME2024, DEEPSCALER, MATH500
from coterie.data.row import Row, Source
from coterie.envs.base import TaskEnv
from coterie.limits import Count
from coterie.prompts import check, fill
from coterie.types import Split, Task


@dataclass(frozen=True)
class DatasetEnv(TaskEnv):
    """Each split comes from a file, prepared or in its source's own format, or from the hub if no file is named.

    A subclass names its sources and its prompt.
    """

    training: ClassVar[Source]
    testing: ClassVar[Source]
    placeholders: ClassVar[tuple[str, ...]] = ()  # fields of a row that a prompt may use beside {question}

    train: Path | None = None  # training rows, jsonl or Parquet; null: from the hub
    test: Path | None = None  # held-out rows; null: from the hub
    prompt: str = "{question}"  # how a row is asked; may use {question}
    limit: Count | None = None  # only the first rows of each split; null: all

    def __post_init__(self) -> None:
        check(self.prompt, ["question", *self.placeholders], "prompt")

    def tasks(self, split: Split) -> list[Task]:
        return [self._task(row) for row in islice(self._rows(split), self.limit)]

    def fields(self, meta: Mapping[str, Any]) -> dict[str, str]:
        """The values of the placeholders."""
        return {name: str(meta[name]) for name in self.placeholders}

    @classmethod
    def readable(cls) -> list[str]:
        """The datasets whose prepared files it accepts."""
        return list(dict.fromkeys((cls.training.name, cls.testing.name)))

    def _rows(self, split: Split) -> Iterator[Row]:
        path = self.train if split == "train" else self.test
        dataset = source_of(path) if path else None
        if path is not None and dataset is not None:
            if dataset not in self.readable():
                known = " or ".join(self.readable())
                raise ValueError(f"{path} holds {dataset}, and {type(self).__name__} reads {known}; rows reads any")
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


@dataclass(frozen=True)
class Gsm8k(DatasetEnv):
    """GSM8K: grade-school word problems with a number as answer; use `reward: number` or `math`."""

    training = testing = GSM8K


@dataclass(frozen=True)
class Math(DatasetEnv):
    """Competition mathematics: trains on DeepScaleR, evaluates on MATH-500, or on your files; use `reward: math`."""

    training = DEEPSCALER
    testing = MATH500

    prompt: str = "{question}\n\nPut your final answer within \\boxed{}."

    @classmethod
    def readable(cls) -> list[str]:
        return [source.name for source in (DEEPSCALER, MATH500, AIME2024, GSM8K)]


@dataclass(frozen=True)
class Aime(Math):
    """Like `math`, evaluated on AIME 2024."""

    training = DEEPSCALER
    testing = AIME2024


@dataclass(frozen=True)
class HotpotQa(DatasetEnv):
    """HotpotQA: multi-hop questions; use `reward: qa`. `{context}` in the prompt is the ten articles, for teams that do
    not search."""

    training = testing = HOTPOTQA
    placeholders = ("context",)

    prompt: str = "{question}\n\nAnswer in a few words."

    def fields(self, meta: Mapping[str, Any]) -> dict[str, str]:
        articles = (f"{title}\n{article(sentences)}" for title, sentences in meta["context"])
        return {"context": "\n\n".join(articles)}


@dataclass(frozen=True)
class Anli(DatasetEnv):
    """ANLI, natural language inference: a premise and a hypothesis; use `reward: nli`."""

    training = testing = ANLI
    placeholders = ("premise", "hypothesis")

    prompt: str = (
        "{question}\n\nDoes the hypothesis follow from the premise, contradict it, or neither? "
        "Answer with one word: entailment, contradiction or neutral."
    )
