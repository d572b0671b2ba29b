"""rLLM's `DatasetRegistry` over prepared data: `data/NAME/SPLIT.parquet`, as `coterie data prepare` writes it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coterie.config.problems import ConfigError
from coterie.data.deepcoder import DEEPCODER
from coterie.data.files import KINDS, is_prepared, read, read_prepared, source_of
from coterie.data.row import Raw
from coterie.data.sources import SOURCES
from coterie.data.tables import rows_of
from coterie.errors import did_you_mean
from coterie.files import write_atomic

DATA = Path("data")  # where `coterie data prepare` writes
# rLLM's name of a dataset → Coterie's
NAMES = {
    "deepscaler_math": "deepscaler",
    "math500": "math500",
    "R2E_Gym_Subset": "r2egym",
    "R2E_Gym_Lite": "r2egym",
    "R2E_Gym_Full": "r2egym",
    "SWE_Bench_Verified": "swebench",
}
SPLITS = {"val": ("val", "test"), "validation": ("validation", "test")}  # other names of a split's file
# The environment of a prepared dataset; rows of any other are questions with answers.
ENVS = {"gsm8k": "gsm8k", "hotpotqa": "hotpotqa", "anli": "anli", "swe": "swe"}
ENVS |= dict.fromkeys(("deepscaler", "aime2024", "math500"), "math")
ENVS |= {name: name for name in ("mbpp", "humaneval", "deepcoder")}
QUESTIONS, ANSWERS = ("question", "problem", "query"), ("answer", "ground_truth")  # names of the fields in rLLM's rows


@dataclass(frozen=True)
class Dataset:
    """One split of a dataset, in a file."""

    path: Path

    def __len__(self) -> int:
        return len(self.get_data())

    def __iter__(self) -> Iterator[Raw]:
        return iter(self.get_data())

    def __getitem__(self, index: int) -> Raw:
        return self.get_data()[index]

    def get_data(self) -> list[Raw]:
        """The rows; those of a prepared file have question, answer and the other fields."""
        if is_prepared(self.path):
            return [{"question": row.question, "answer": row.answer, **row.meta} for row in read_prepared(self.path)]
        return [raw for _, raw in read(self.path)]

    def env(self) -> dict[str, Any]:
        """The environment that reads it: the dataset's own, or `rows` with the names of its fields."""
        source = source_of(self.path)
        if source is not None:
            return {"name": ENVS.get(source, "swe" if source in ("swebench", "r2egym") else "rows")}
        first = next((raw for _, raw in read(self.path)), {})
        if "problem_statement" in first or "repository" in first:
            return {"name": "swe"}
        if not isinstance(DEEPCODER.parse(first, ""), str):
            return {"name": DEEPCODER.name}
        return {"name": "rows", "question": _field(first, QUESTIONS), "answer": _field(first, ANSWERS)}

    def reward(self) -> str:
        """The recommended reward of the dataset; F1 with the answer for rows of your own."""
        source = source_of(self.path) or self.env()["name"]
        return SOURCES[source].reward if source in SOURCES else "qa"


class DatasetRegistry:
    """Datasets by name and split, in the folder `data`."""

    @classmethod
    def load_dataset(cls, name: str, split: str = "train") -> Dataset:
        folder = cls._folder(name)
        for stem in SPLITS.get(split, (split,)):
            for kind in KINDS:
                if (path := folder / f"{stem}{kind}").is_file():
                    return Dataset(path)
        known = NAMES.get(name, name)
        prepare = f"`coterie data prepare {known}` writes it" if known in SOURCES else did_you_mean(known, SOURCES)
        register = f'DatasetRegistry.register_dataset("{name}", rows, "{split}") stores your own rows'
        raise ConfigError(f"{folder}: no {split} split of {name}; {prepare or 'it is not known'}; {register}")

    @classmethod
    def register_dataset(cls, name: str, data: Any, split: str = "default") -> Dataset:
        """Store rows, or a table of pandas or `datasets`, as a split."""
        path = DATA / name / f"{split}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        rows = rows_of(data, f"{name}, {split}")
        write_atomic(path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
        return Dataset(path)

    @classmethod
    def dataset_exists(cls, name: str, split: str | None = None) -> bool:
        stems = ["*"] if split is None else SPLITS.get(split, (split,))
        return any(file.suffix in KINDS for stem in stems for file in cls._folder(name).glob(f"{stem}.*"))

    @classmethod
    def _folder(cls, name: str) -> Path:
        """A folder with the dataset's own name, or with Coterie's name of it."""
        return DATA / name if (DATA / name).is_dir() else DATA / NAMES.get(name, name)


def _field(row: Raw, names: tuple[str, ...]) -> str:
    return next((name for name in names if name in row), names[0])
