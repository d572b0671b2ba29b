"""A source's rows → train and test Parquet, and a file of those that are no good, with the reasons."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from coterie.data.files import KINDS, as_parquet, problem, rows
from coterie.data.hotpotqa import HOTPOTQA, article
from coterie.data.hub import from_hub
from coterie.data.row import Raw, Row, Source
from coterie.files import atomic_folder
from coterie.seeds import stable_hash

if TYPE_CHECKING:
    from coterie.types import Split

SPLITS: tuple[Split, Split] = ("test", "train")  # the test first: what is in it may not be trained on
SAYS: dict[str, Split] = {
    "train": "train",
    "test": "test",
    "dev": "test",
    "valid": "test",
    "validation": "test",
    "eval": "test",
}
HELD_OUT = 5  # of rows that nothing says about, one in so many is for the test
DRAWN = f"drawn: one in {HELD_OUT} is held out"


@dataclass(frozen=True)
class Found:
    """A row of a source, where it stood, and the split that its place names."""

    place: str  # a file's name, or the hub's split
    number: int
    raw: Raw | str  # a text says why it is none
    split: Split | None


@dataclass(frozen=True)
class Placed:
    """A row with its split, and how that was decided."""

    found: Found
    row: Row
    split: Split
    why: str

    @property
    def drawn(self) -> bool:
        return self.why == DRAWN


@dataclass
class Prepared:
    """What came of a source."""

    splits: dict[Split, list[Row]] = field(default_factory=lambda: {"train": [], "test": []})
    origins: Counter[tuple[Split, str, str]] = field(default_factory=Counter)  # split, place, why: how many rows
    rejected: list[tuple[Found, str]] = field(default_factory=list)

    @property
    def reasons(self) -> Counter[str]:
        return Counter(reason for _, reason in self.rejected)


def found_in(source: Source, place: Path | None) -> Iterator[Found]:
    """All rows of a file, of a folder's files, or of the hub."""
    if place is None:
        for split in SPLITS:
            for number, raw in from_hub(source, split):
                yield Found(split, number, raw, split)
        return
    for file in _files(place):
        for number, read in rows(file):
            yield Found(file.name, number, placed(read, source.paths, file.parent), said_by(file.stem))


def placed(raw: Raw | str, paths: Iterable[str], folder: Path) -> Raw | str:
    """A row whose paths are whole, for what is prepared lies elsewhere."""
    if isinstance(raw, str):
        return raw
    return raw | {name: str((folder / raw[name]).resolve()) for name in paths if isinstance(raw.get(name), str)}


def said_by(stem: str) -> Split | None:
    """The split that a file's name tells: r1_dev and test_200 are for the test."""
    words = stem.lower().replace("-", "_").replace(".", "_").split("_")
    told = {SAYS[word] for word in words if word in SAYS}
    if len(told) > 1:
        raise ValueError(f"{stem}: the file's name says both train and test; rename it to say one of them")
    return next(iter(told), None)


def sort_out(source: Source, found: Iterable[Found], limit: int | None = None) -> Prepared:
    """Good rows into their splits, `limit` of each at most; the others with the reason why not."""
    result, parsed = Prepared(), list[tuple[Found, Row]]()
    for one in found:
        row = read(source, one)
        if isinstance(row, str):
            result.rejected.append((one, row))
        else:
            parsed.append((one, row))
    has_test = any(one.split == "test" for one, _ in parsed)
    placed = [place(source, one, row, has_test) for one, row in parsed]
    for split in SPLITS:
        _fill(result, split, [one for one in placed if one.split == split], limit)
    return result


def read(source: Source, found: Found) -> Row | str:
    """A row, or what is wrong with it."""
    if isinstance(found.raw, str):
        return found.raw
    name = f"{source.name}/{Path(found.place).stem}/{found.number}"
    row = source.parse(found.raw, name)
    return row if isinstance(row, str) else problem(row) or row


def place(source: Source, found: Found, row: Row, has_test: bool) -> Placed:
    """The split of a row: what its file's name says, else what the row says, else the data set, else it is drawn.

    A data set that its authors did not split is drawn even if its files say train, unless others say test.
    """
    if found.split is not None and not (source.unsplit and found.split == "train" and not has_test):
        against = f", although their ids say {row.split}" if row.split not in (None, found.split) else ""
        return Placed(found, row, found.split, f"as its name says{against}")
    if row.split is not None:
        return Placed(found, row, row.split, "by their ids")
    if source.split is not None:
        return Placed(found, row, source.split, f"since {source.name} is for {source.split}")
    return Placed(found, row, dealt(row.question), DRAWN)


def dealt(question: str) -> Split:
    """The same question always goes to the same split, whatever else is in the file."""
    return "test" if stable_hash("held out", question) % HELD_OUT == 0 else "train"


def write(source: str, prepared: Prepared, out: Path) -> None:
    """A new folder with what there is; it appears whole or not at all. HotpotQA's articles are a corpus."""
    with atomic_folder(out) as folder:
        for split, chosen in prepared.splits.items():
            if chosen:
                (folder / f"{split}.parquet").write_bytes(as_parquet(source, chosen))
        if source == HOTPOTQA.name:
            (folder / "corpus.jsonl").write_text("".join(_articles(prepared)), "utf-8")
        if prepared.rejected:
            lines = (_set_aside(one, reason) for one, reason in prepared.rejected)
            (folder / "rejected.jsonl").write_text("".join(lines), "utf-8", errors="backslashreplace")


def _fill(result: Prepared, split: Split, placed: list[Placed], limit: int | None) -> None:
    seen = {key: "a row of the test" for row in result.splits["test"] for key in _keys(row, unique=True)}
    for one in placed:
        if len(result.splits[split]) == limit:
            break
        keys = _keys(one.row, unique=split == "train" or one.drawn)
        twice = [key for key in keys if key in seen]
        if twice:
            result.rejected.append((one.found, f"the same {twice[0][0]} as {seen[twice[0]]}"))
        else:
            result.splits[split].append(replace(one.row, split=split))
            result.origins[split, one.found.place, one.why] += 1
            seen |= dict.fromkeys(keys, "an earlier row")


def _keys(row: Row, unique: bool) -> list[tuple[str, str]]:
    """What no two rows may share. A question that its authors put into the test twice stays there twice."""
    return [("id", row.id)] + ([("question", row.question.strip())] if unique else [])


def _articles(prepared: Prepared) -> list[str]:
    """The articles of all rows, each title once, as documents to search in."""
    rows = [row for chosen in prepared.splits.values() for row in chosen]
    found = {title: article(sentences) for row in rows for title, sentences in row.meta["context"]}
    return [json.dumps({"title": title, "text": text}, ensure_ascii=False) + "\n" for title, text in found.items()]


def _set_aside(found: Found, reason: str) -> str:
    raw = None if isinstance(found.raw, str) else found.raw
    kept = {"source": found.place, "row": found.number, "reason": reason, "raw": raw}
    return json.dumps(kept, ensure_ascii=False, default=str) + "\n"


def _files(place: Path) -> list[Path]:
    if place.is_file():
        return [place]
    files = sorted(file for file in place.glob("*") if file.suffix in KINDS)
    if not files:
        raise ValueError(f"{place}: there is no {', '.join(KINDS)} file")
    return files
