"""BM25 over a file of documents. The index is built once, kept on disk and mapped into memory."""

from __future__ import annotations

import hashlib
import json
import os
import re
from array import array
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from coterie.models.cache import cache_folder, made_once

K1, B = 1.2, 0.75  # how soon a repeated word stops to count; how much long documents pay
VERSION = "1"  # of what is written, and of how text becomes words
WORD = re.compile(r"\w+")
# Too common to tell documents apart.
STOP = {*("a", "an", "and", "are", "as", "at", "be", "by", "for", "from", "has", "he", "in", "is", "it", "its")}
STOP |= {*("of", "on", "or", "that", "the", "this", "to", "was", "were", "with")}


@dataclass(frozen=True)
class Document:
    """A text with a title."""

    id: str
    title: str
    text: str


class Index:
    """Which documents have which words, and what each word is worth there.

    Postings lie word after word: `starts[w]:starts[w + 1]` are those of word w. `lines[d]` is where document d
    stands in the corpus, which is read from there and not kept twice.
    """

    def __init__(self, corpus: Path, folder: Path) -> None:
        self.corpus = corpus
        self.words: dict[str, int] = json.loads((folder / "words.json").read_text("utf-8"))
        self.names: dict[str, int] = json.loads((folder / "names.json").read_text("utf-8"))
        arrays = ("starts", "documents", "weights", "lines")
        self.starts, self.documents, self.weights, self.lines = (
            np.load(folder / f"{name}.npy", mmap_mode="r") for name in arrays
        )

    @classmethod
    def of(cls, corpus: Path) -> Index:
        """The index of a jsonl file, made anew if the file changed; beside it where we may write, else in our cache."""
        if not corpus.is_file():
            raise ValueError(f"{corpus}: no such file; search wants a jsonl file of documents with title and text")
        content = hashlib.sha256(corpus.read_bytes() + VERSION.encode()).hexdigest()[:16]
        beside = os.access(corpus.parent, os.W_OK)
        folder = corpus.parent / f".{corpus.name}.bm25" if beside else cache_folder() / "bm25"
        return cls(corpus, made_once(folder / content, lambda part: _build(corpus, part)))

    def search(self, query: str, count: int) -> list[tuple[Document, float]]:
        """The documents that fit best, and how well; those that share no word with the query do not."""
        scores = np.zeros(len(self.lines), dtype=np.float32)
        for word in set(words_of(query)) & self.words.keys():
            own = slice(self.starts[self.words[word]], self.starts[self.words[word] + 1])
            scores[self.documents[own]] += self.weights[own]  # a document is in a word's postings once
        best = np.lexsort((np.arange(len(scores)), -scores))[:count] if count else np.empty(0, int)
        return [(self.read(int(number)), float(scores[number])) for number in best if scores[number] > 0]

    def find(self, name: str) -> Document | None:
        """A document by its id or title; capitals do not matter."""
        number = self.names.get(name.strip().casefold())
        return None if number is None else self.read(number)

    def read(self, number: int) -> Document:
        with self.corpus.open("rb") as file:
            file.seek(int(self.lines[number]))
            return _document(json.loads(file.readline()), str(number))


def words_of(text: str) -> list[str]:
    return [word for word in WORD.findall(text.casefold()) if word not in STOP]


def _document(row: dict[str, Any], number: str) -> Document:
    title = str(row.get("title", ""))
    return Document(str(row.get("id", title or number)), title, str(row["text"]))


def _rows(corpus: Path) -> Iterator[tuple[int, Document]]:
    """Each document and the byte at which its line begins."""
    with corpus.open("rb") as file:
        place = 0
        for number, line in enumerate(file, 1):
            if line.strip():
                try:
                    yield place, _document(json.loads(line), str(number))
                except (ValueError, KeyError, AttributeError) as error:
                    raise ValueError(f"{corpus}, row {number}: title and text are wanted: {error!r}") from None
            place += len(line)


def _build(corpus: Path, folder: Path) -> None:
    words: dict[str, int] = {}
    names: dict[str, int] = {}
    columns = {name: array("q") for name in ("word", "document", "count", "length", "line")}
    for number, (place, document) in enumerate(_rows(corpus)):
        said = Counter(words_of(f"{document.title} {document.text}"))
        columns["word"].extend(words.setdefault(word, len(words)) for word in said)
        columns["document"].extend([number] * len(said))
        columns["count"].extend(said.values())
        columns["length"].append(said.total())
        columns["line"].append(place)
        for name in (document.id, document.title):
            names.setdefault(name.strip().casefold(), number)
    if not columns["line"]:
        raise ValueError(f"{corpus}: no documents in it")
    _write(folder, words, names, {name: np.frombuffer(column, np.int64) for name, column in columns.items()})


def _write(folder: Path, words: dict[str, int], names: dict[str, int], columns: dict[str, np.ndarray]) -> None:
    word, document, count = columns["word"], columns["document"], columns["count"]
    frequency = np.bincount(word, minlength=len(words))  # [W], documents that have the word
    rarity = np.log1p((len(columns["line"]) - frequency + 0.5) / (frequency + 0.5))
    length = columns["length"] / max(columns["length"].mean(), 1.0)
    weight = rarity[word] * count * (K1 + 1) / (count + K1 * (1 - B + B * length[document]))
    order = np.argsort(word, kind="stable")
    np.save(folder / "starts.npy", np.concatenate(([0], np.cumsum(frequency))))
    np.save(folder / "documents.npy", document[order].astype(np.int32))
    np.save(folder / "weights.npy", weight[order].astype(np.float32))
    np.save(folder / "lines.npy", columns["line"])
    (folder / "words.json").write_text(json.dumps(words), "utf-8")
    (folder / "names.json").write_text(json.dumps(names), "utf-8")
