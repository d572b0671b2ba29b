"""BM25 index over a jsonl corpus: built once, cached on disk and memory-mapped."""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from coterie.files import build_once, cache_folder

VERSION = f"3/{version('bm25s')}"  # of the file format and the tokenizer
WORD = re.compile(r"\w+")
STOP = {*("a", "an", "and", "are", "as", "at", "be", "by", "for", "from", "has", "he", "in", "is", "it", "its")}
STOP |= {*("of", "on", "or", "that", "the", "this", "to", "was", "were", "with")}


def import_bm25s() -> Any:
    """Import bm25s without JAX, which it imports if installed, and which preallocates most of a GPU's memory."""
    if "bm25s" not in sys.modules and "jax" not in sys.modules:
        sys.modules["jax"] = None  # type: ignore[assignment]
        try:
            import_module("bm25s")
        finally:
            del sys.modules["jax"]
    return import_module("bm25s")


@dataclass(frozen=True)
class Document:
    """A document of the corpus."""

    id: str
    title: str
    text: str


class Index:
    """An inverted index with BM25 scores.

    `offsets[d]` is the byte at which document d starts in the corpus; texts are read from there.
    """

    def __init__(self, corpus: Path, folder: Path) -> None:
        self.corpus = corpus
        self.scores = import_bm25s().BM25.load(folder, mmap=True)
        self.names: dict[str, int] = json.loads((folder / "names.json").read_text("utf-8"))
        self.offsets = np.load(folder / "lines.npy", mmap_mode="r")

    @classmethod
    def of(cls, corpus: Path) -> Index:
        """The index of a jsonl file, rebuilt if that changed; stored beside it, or in the cache folder."""
        if not corpus.is_file():
            raise ValueError(f"{corpus}: no such file; give a jsonl file of documents with title and text")
        content = hashlib.sha256(corpus.read_bytes() + VERSION.encode()).hexdigest()[:16]
        beside = os.access(corpus.parent, os.W_OK)
        folder = corpus.parent / f".{corpus.name}.bm25" if beside else cache_folder() / "bm25"
        return cls(corpus, build_once(folder / content, lambda part: _build(corpus, part)))

    def search(self, query: str, count: int) -> list[tuple[Document, float]]:
        """The top `count` documents with their scores, without those that share no word with the query."""
        tokens = self.scores.get_tokens_ids(list(dict.fromkeys(words_of(query))))
        scores = self.scores.get_scores_from_ids(tokens)
        # Not bm25s' own top-k, which breaks ties arbitrarily: runs must be reproducible.
        best = np.lexsort((np.arange(len(scores)), -scores))[:count]
        return [(self.read(int(number)), float(scores[number])) for number in best if scores[number] > 0]

    def find(self, name: str) -> Document | None:
        """Look up a document by id or title, ignoring case; one without either is named by its number from 1."""
        number = self.names.get(name.strip().casefold())
        return None if number is None else self.read(number)

    def read(self, number: int) -> Document:
        with self.corpus.open("rb") as file:
            file.seek(int(self.offsets[number]))
            return _document(json.loads(file.readline()), number)


def words_of(text: str) -> list[str]:
    return [word for word in WORD.findall(text.casefold()) if word not in STOP]


def _document(row: dict[str, Any], number: int) -> Document:
    """`number`: the document's index in the corpus."""
    title = str(row.get("title", ""))
    return Document(str(row.get("id", title or number + 1)), title, str(row["text"]))


def _rows(corpus: Path) -> Iterator[tuple[int, Document]]:
    """Each document with its byte offset."""
    with corpus.open("rb") as file:
        place = number = 0
        for row, line in enumerate(file, 1):
            if line.strip():
                try:
                    yield place, _document(json.loads(line), number)
                except (ValueError, KeyError, AttributeError) as error:
                    raise ValueError(f"{corpus}, row {row}: needs title and text: {error!r}") from None
                number += 1
            place += len(line)


def _build(corpus: Path, folder: Path) -> None:
    vocabulary: dict[str, int] = {"": 0}  # bm25s needs an id for the empty token
    names: dict[str, int] = {}
    offsets, documents = list[int](), list[list[int]]()
    for number, (place, document) in enumerate(_rows(corpus)):
        offsets.append(place)
        words = words_of(f"{document.title} {document.text}")
        documents.append([vocabulary.setdefault(word, len(vocabulary)) for word in words])
        for name in (document.id, document.title):
            names.setdefault(name.strip().casefold(), number)
    if not any(documents):
        raise ValueError(f"{corpus}: has no documents with words")
    index = import_bm25s().BM25(k1=1.2, b=0.75)  # saturation of term frequency; length normalization
    index.index((documents, vocabulary), show_progress=False)
    index.save(folder, show_progress=False)
    np.save(folder / "lines.npy", np.array(offsets))
    (folder / "names.json").write_text(json.dumps(names), "utf-8")
