"""One task as it is stored: the same four columns whatever the source."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from coterie.types import Split

Raw = dict[str, Any]  # as the source has it


@dataclass(frozen=True)
class Row:
    """A question and its reference answer; what else a workflow or a grader may need is in `meta`."""

    id: str
    question: str
    answer: str | None  # None where many answers are right and a scorer of its own tells
    meta: Mapping[str, Any] = field(default_factory=dict)
    split: Split | None = None  # where the row itself says so


Parse = Callable[[Raw, str], "Row | str"]  # (a source's row, an id unless it has one) → a row, or what is wrong with it


@dataclass(frozen=True)
class Hub:
    """Where a source lies on the Hugging Face hub."""

    path: str
    config: str | None
    splits: Mapping[str, Split]  # the hub's name → ours


@dataclass(frozen=True)
class Source:
    """A known data set: how to read a row of it, and where it comes from."""

    name: str
    about: str
    reward: str  # that fits it
    parse: Parse
    hubs: tuple[Hub, ...] = ()
    split: Split | None = None  # of files whose names do not say; None: some rows are held out
    unsplit: bool = False  # its authors made no test split, so rows are held out even if all files are called train
    paths: tuple[str, ...] = ()  # fields of a row that are paths, from its file's place


def lacks(raw: Raw, *names: str) -> str | None:
    """What is wrong with a row that must have these texts, or None."""
    for name in names:
        if name not in raw:
            return f"no field {name}; it has {', '.join(raw)}"
        if not isinstance(raw[name], str):
            return f"{name} is {json.dumps(raw[name])[:40]}, not text"
        if not raw[name].strip():
            return f"{name} is empty"
    return None


def others(raw: Raw, *names: str) -> Raw:
    """The fields of a row without those that have a place of their own."""
    return {name: value for name, value in raw.items() if name not in names}
