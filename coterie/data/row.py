"""The common row format of all datasets, and the description of a dataset."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from coterie.types import Split

Raw = dict[str, Any]  # a row in its dataset's own format


@dataclass(frozen=True)
class Row:
    """A question and its reference answer; other data for workflows and graders is in `meta`."""

    id: str
    question: str
    answer: str | None  # None if there is no single reference and the environment scores itself
    meta: Mapping[str, Any] = field(default_factory=dict)
    split: Split | None = None  # if the row's own id or fields determine it


Parse = Callable[[Raw, str], "Row | str"]  # (raw row, default id) → a row, or what is wrong with it
Finish = Callable[[Sequence[Row]], "list[Row | str]"]  # rows → the complete rows, or what is wrong with each


@dataclass(frozen=True)
class Hub:
    """The location of a dataset on the Hugging Face hub."""

    path: str
    config: str | None
    splits: Mapping[str, Split]  # the hub's name → ours


@dataclass(frozen=True)
class Source:
    """A known dataset: how its rows are parsed, and where they come from."""

    name: str
    about: str
    reward: str  # the recommended reward
    parse: Parse
    hubs: tuple[Hub, ...] = ()
    split: Split | None = None  # of rows in files whose name implies none; None: some rows are held out for test
    unsplit: bool = False  # the dataset has no test split: rows are held out even if all files are named train
    paths: tuple[str, ...] = ()  # fields with paths relative to the file
    finish: Finish | None = None  # slow work on parsed rows, such as running programs; only for rows that are needed


def missing_text(raw: Raw, *names: str) -> str | None:
    """What is wrong with a row that must have these non-empty texts, or None."""
    for name in names:
        if name not in raw:
            return f"no field {name}; it has {', '.join(raw)}"
        if not isinstance(raw[name], str):
            return f"{name} is {json.dumps(raw[name])[:40]}, not text"
        if not raw[name].strip():
            return f"{name} is empty"
    return None


def other_fields(raw: Raw, *names: str) -> Raw:
    """The fields of a row except these."""
    return {name: value for name, value in raw.items() if name not in names}
