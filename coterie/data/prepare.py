"""Prepare a dataset: parse, validate, deduplicate and split its rows into train and test Parquet.

Invalid rows go to rejected.jsonl with the reason.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from coterie.data.files import KINDS, as_parquet, parse_rows, storage_problem
from coterie.data.hotpotqa import HOTPOTQA, article
from coterie.data.hub import from_hub
from coterie.data.row import Raw, Row, Source
from coterie.files import atomic_folder, reporting_write_errors
from coterie.seeds import stable_hash

if TYPE_CHECKING:
    from coterie.types import Split

SPLITS: tuple[Split, Split] = ("test", "train")  # test first: its rows are removed from train
SPLIT_NAMES: dict[str, Split] = {
    "train": "train",
    "test": "test",
    "dev": "test",
    "valid": "test",
    "validation": "test",
    "eval": "test",
}
HELD_OUT = 5  # one in so many rows without a known split goes to test
# Rows read per row of `limit`, for sources with `finish`, which rejects rows: gives 4 candidates for each test row.
READ_AHEAD = 4 * HELD_OUT
AT_ONCE = 64  # rows in one call of `Source.finish`
DRAWN = f"drawn: one in {HELD_OUT} is held out"


@dataclass(frozen=True)
class SourceRow:
    """A raw row, its file, and the split that the file's name implies."""

    place: str  # the file's name, or the hub's split
    number: int
    raw: Raw | str  # a string is the error of an invalid row
    split: Split | None


@dataclass(frozen=True)
class AssignedRow:
    """A row with its split, and the reason for that split."""

    source_row: SourceRow
    row: Row
    split: Split
    why: str

    @property
    def drawn(self) -> bool:
        return self.why == DRAWN


@dataclass
class Prepared:
    """The result: rows by split, and rejected rows."""

    splits: dict[Split, list[Row]] = field(default_factory=lambda: {"train": [], "test": []})
    origins: Counter[tuple[Split, str, str]] = field(default_factory=Counter)  # split, place, why: how many rows
    rejected: list[tuple[SourceRow, str]] = field(default_factory=list)

    @property
    def reasons(self) -> Counter[str]:
        return Counter(reason for _, reason in self.rejected)


def read_source(source: Source, place: Path | None) -> Iterator[SourceRow]:
    """All rows of a file or of a folder's files; from the hub if `place` is None."""
    if place is None:
        for split in SPLITS:
            for number, raw in from_hub(source, split):
                yield SourceRow(split, number, raw, split)
        return
    for file in _files(place):
        for number, raw_row in parse_rows(file):
            raw_row = resolve_paths(raw_row, source.paths, file.parent)
            yield SourceRow(file.name, number, raw_row, split_from_name(file.stem))


def resolve_paths(raw: Raw | str, paths: Iterable[str], folder: Path) -> Raw | str:
    """Make a row's relative paths absolute, because prepared files are in another folder."""
    if isinstance(raw, str):
        return raw
    return raw | {name: str((folder / raw[name]).resolve()) for name in paths if isinstance(raw.get(name), str)}


def split_from_name(stem: str) -> Split | None:
    """The split that a file's name implies: r1_dev and test_200 are test."""
    words = stem.lower().replace("-", "_").replace(".", "_").split("_")
    found = {SPLIT_NAMES[word] for word in words if word in SPLIT_NAMES}
    if len(found) > 1:
        raise ValueError(f"{stem}: the file's name contains both train and test; rename it")
    return next(iter(found), None)


def split_rows(source: Source, source_rows: Iterable[SourceRow], limit: int | None = None) -> Prepared:
    """Validate rows and assign them to splits, at most `limit` per split; the others are rejected with a reason."""
    result, parsed = Prepared(), list[tuple[SourceRow, Row]]()
    # A source with `finish` may have millions of rows, too many for memory.
    for one in islice(source_rows, limit * READ_AHEAD if limit and source.finish else None):
        row = parse(source, one)
        if isinstance(row, str):
            result.rejected.append((one, row))
        else:
            parsed.append((one, row))
    has_test = any(one.split == "test" for one, _ in parsed)
    assigned = [assign_split(source, one, row, has_test) for one, row in parsed]
    for split in SPLITS:
        _fill(result, split, finished(source, [one for one in assigned if one.split == split]), limit)
    return result


def parse(source: Source, found: SourceRow) -> Row | str:
    """A row, or what is wrong with it."""
    if isinstance(found.raw, str):
        return found.raw
    name = f"{source.name}/{Path(found.place).stem}/{found.number}"
    row = source.parse(found.raw, name)
    return row if isinstance(row, str) else storage_problem(row) or row


def assign_split(source: Source, found: SourceRow, row: Row, has_test: bool) -> AssignedRow:
    """The split of a row: by its file's name, else by the row, else by the dataset, else by a hash of the question.

    Rows of a dataset without a test split are hashed even if their file is named train, unless another is named test.
    """
    if found.split is not None and not (source.unsplit and found.split == "train" and not has_test):
        against = f", although their ids say {row.split}" if row.split not in (None, found.split) else ""
        return AssignedRow(found, row, found.split, f"as its name says{against}")
    if row.split is not None:
        return AssignedRow(found, row, row.split, "by their ids")
    if source.split is not None:
        return AssignedRow(found, row, source.split, f"since {source.name} is for {source.split}")
    return AssignedRow(found, row, split_by_hash(row.question), DRAWN)


def split_by_hash(question: str) -> Split:
    """Depends on the question alone, so a question is always in the same split."""
    return "test" if stable_hash("held out", question) % HELD_OUT == 0 else "train"


def write(source: str, prepared: Prepared, out: Path) -> None:
    """Write a new folder atomically. HotpotQA's articles are written as a corpus, too."""
    with reporting_write_errors(out), atomic_folder(out) as folder:
        for split, chosen in prepared.splits.items():
            if chosen:
                (folder / f"{split}.parquet").write_bytes(as_parquet(source, chosen))
        if source == HOTPOTQA.name:
            (folder / "corpus.jsonl").write_text("".join(_articles(prepared)), "utf-8")
        if prepared.rejected:
            lines = (_rejected_line(one, reason) for one, reason in prepared.rejected)
            (folder / "rejected.jsonl").write_text("".join(lines), "utf-8", errors="backslashreplace")


def finished(source: Source, assigned: list[AssignedRow]) -> Iterator[tuple[AssignedRow, Row | str]]:
    """Apply `source.finish` lazily, AT_ONCE rows per call; a string is the error of an invalid row."""
    if source.finish is None:
        yield from ((one, one.row) for one in assigned)
        return
    for start in range(0, len(assigned), AT_ONCE):
        some = assigned[start : start + AT_ONCE]
        yield from zip(some, source.finish([one.row for one in some]), strict=True)


def _fill(result: Prepared, split: Split, rows: Iterator[tuple[AssignedRow, Row | str]], limit: int | None) -> None:
    """Add rows to a split until it has `limit`, without duplicates within it or, in train, of test rows."""
    seen = {key: "a row of the test" for row in result.splits["test"] for key in _keys(row, unique=True)}
    while len(result.splits[split]) != limit and (found := next(rows, None)):
        one, row = found
        problem = row if isinstance(row, str) else _duplicate(row, split == "train" or one.drawn, seen)
        if problem is not None:
            result.rejected.append((one.source_row, problem))
        elif not isinstance(row, str):
            result.splits[split].append(replace(row, split=split))
            result.origins[split, one.source_row.place, one.why] += 1
            seen |= dict.fromkeys(_keys(row, split == "train" or one.drawn), "an earlier row")


def _duplicate(row: Row, unique: bool, seen: Mapping[tuple[str, str], str]) -> str | None:
    twice = [key for key in _keys(row, unique) if key in seen]
    return f"the same {twice[0][0]} as {seen[twice[0]]}" if twice else None


def _keys(row: Row, unique: bool) -> list[tuple[str, str]]:
    """The keys for deduplication. A question that occurs twice in an official test split stays there twice."""
    return [("id", row.id)] + ([("question", row.question.strip())] if unique else [])


def _articles(prepared: Prepared) -> list[str]:
    """The articles of all rows, each title once, as documents of a corpus."""
    rows = [row for chosen in prepared.splits.values() for row in chosen]
    found = {title: article(sentences) for row in rows for title, sentences in row.meta["context"]}
    return [json.dumps({"title": title, "text": text}, ensure_ascii=False) + "\n" for title, text in found.items()]


def _rejected_line(found: SourceRow, reason: str) -> str:
    raw = None if isinstance(found.raw, str) else found.raw
    kept = {"source": found.place, "row": found.number, "reason": reason, "raw": raw}
    return json.dumps(kept, ensure_ascii=False, default=str) + "\n"


def _files(place: Path) -> list[Path]:
    if place.is_file():
        return [place]
    if not place.is_dir():
        raise ValueError(f"{place}: no such file or folder")
    files = sorted(file for file in place.glob("*") if file.suffix in KINDS)
    if not files:
        raise ValueError(f"{place}: has no {', '.join(KINDS)} file")
    return files
