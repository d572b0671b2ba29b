"""BM25 over a file of documents. The index is built once, kept on disk and mapped into memory."""

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

from coterie.disk_cache import build_once, cache_folder

VERSION = f"3/{version('bm25s')}"  # of what is written, and of how text becomes words
WORD = re.compile(r"\w+")
# Too common to tell documents apart.
STOP = {*("a", "an", "and", "are", "as", "at", "be", "by", "for", "from", "has", "he", "in", "is", "it", "its")}
STOP |= {*("of", "on", "or", "that", "the", "this", "to", "was", "were", "with")}


def library() -> Any:
    """bm25s, kept away from JAX: where that is installed it would wake it, and JAX takes most of a GPU's memory."""
    if "bm25s" not in sys.modules and "jax" not in sys.modules:
        sys.modules["jax"] = None  # type: ignore[assignment]
        try:
            import_module("bm25s")
        finally:
            del sys.modules["jax"]
    return import_module("bm25s")


@dataclass(frozen=True)
class Document:
    """A text with a title."""

    id: str
    title: str
    text: str


class Index:
    """Which documents have which words, and what each word is worth there.

    `lines[d]` is where document d stands in the corpus, which is read from there and not kept twice.
    """

    def __init__(self, corpus: Path, folder: Path) -> None:
        self.corpus = corpus
        self.scores = library().BM25.load(folder, mmap=True)
        self.names: dict[str, int] = json.loads((folder / "names.json").read_text("utf-8"))
        self.lines = np.load(folder / "lines.npy", mmap_mode="r")

    @classmethod
    def of(cls, corpus: Path) -> Index:
        """The index of a jsonl file, made anew if the file changed; beside it where we may write, else in our cache."""
        if not corpus.is_file():
            raise ValueError(f"{corpus}: no such file; search wants a jsonl file of documents with title and text")
        content = hashlib.sha256(corpus.read_bytes() + VERSION.encode()).hexdigest()[:16]
        beside = os.access(corpus.parent, os.W_OK)
        folder = corpus.parent / f".{corpus.name}.bm25" if beside else cache_folder() / "bm25"
        return cls(corpus, build_once(folder / content, lambda part: _build(corpus, part)))

    def search(self, query: str, count: int) -> list[tuple[Document, float]]:
        """The documents that fit best, and how well; those that share no word with the query do not."""
        asked = self.scores.get_tokens_ids(list(dict.fromkeys(words_of(query))))
        scores = self.scores.get_scores_from_ids(asked)
        # Not the library's own choice of the best: among equals it takes any, and a run must be the same again.
        best = np.lexsort((np.arange(len(scores)), -scores))[:count]
        return [(self.read(int(number)), float(scores[number])) for number in best if scores[number] > 0]

    def find(self, name: str) -> Document | None:
        """A document by its id or title; capitals do not matter. One that has neither goes by its number from 1."""
        number = self.names.get(name.strip().casefold())
        return None if number is None else self.read(number)

    def read(self, number: int) -> Document:
        with self.corpus.open("rb") as file:
            file.seek(int(self.lines[number]))
            return _document(json.loads(file.readline()), number)


def words_of(text: str) -> list[str]:
    return [word for word in WORD.findall(text.casefold()) if word not in STOP]


def _document(row: dict[str, Any], number: int) -> Document:
    """`number`: of documents before it in the corpus."""
    title = str(row.get("title", ""))
    return Document(str(row.get("id", title or number + 1)), title, str(row["text"]))


def _rows(corpus: Path) -> Iterator[tuple[int, Document]]:
    """Each document and the byte at which its line begins."""
    with corpus.open("rb") as file:
        place = number = 0
        for row, line in enumerate(file, 1):
            if line.strip():
                try:
                    yield place, _document(json.loads(line), number)
                except (ValueError, KeyError, AttributeError) as error:
                    raise ValueError(f"{corpus}, row {row}: title and text are wanted: {error!r}") from None
                number += 1
            place += len(line)


def _build(corpus: Path, folder: Path) -> None:
    vocabulary: dict[str, int] = {"": 0}  # the library wants a word for what has none
    names: dict[str, int] = {}
    lines, said = list[int](), list[list[int]]()
    for number, (place, document) in enumerate(_rows(corpus)):
        lines.append(place)
        words = words_of(f"{document.title} {document.text}")
        said.append([vocabulary.setdefault(word, len(vocabulary)) for word in words])
        for name in (document.id, document.title):
            names.setdefault(name.strip().casefold(), number)
    if not any(said):
        raise ValueError(f"{corpus}: no documents with words in it")
    index = library().BM25(k1=1.2, b=0.75)  # how soon a repeated word stops to count; how much long documents pay
    index.index((said, vocabulary), show_progress=False)
    index.save(folder, show_progress=False)
    np.save(folder / "lines.npy", np.array(lines))
    (folder / "names.json").write_text(json.dumps(names), "utf-8")
