"""Shared by workflows that search: the options of the retriever, and the scores of retrieved documents."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coterie.prompts import check_counts
from coterie.rewards.qa import VERDICTS, words
from coterie.tools.bm25 import Document
from coterie.tools.search import Local, Remote, retriever
from coterie.tools.user_function import FunctionRetriever
from coterie.types import Task


@dataclass(frozen=True, kw_only=True)
class RetrievalOptions:
    """Options of workflows with search: a corpus for BM25, a retrieval server, or a function of yours."""

    corpus: Path | None = None  # a jsonl file of {"title": …, "text": …}; `coterie data prepare hotpotqa` writes one
    server: str | None = None  # the http address of a retrieval server, instead of a corpus
    # path/to/file.py:function that searches, instead of a corpus: (query) → documents, each with title and text
    search_tool: Callable[..., Any] | None = None
    documents: int = 3  # documents per query

    def __post_init__(self) -> None:
        given = [place for place in (self.corpus, self.server, self.search_tool) if place is not None]
        if len(given) != 1 and not (self.searches_optionally and not given):
            raise ValueError("corpus: give one of corpus, server and search_tool to search in")
        if self.server is not None and not self.server.startswith(("http://", "https://")):
            raise ValueError(f"server: must begin with http:// or https://, not {self.server}")
        check_counts(self, "documents")

    def problems(self, config: Any) -> Iterator[tuple[str, str]]:
        """Conflicts with the rest of the config, as (dotted key, message): here a corpus file that does not exist."""
        if self.corpus is not None and not self.corpus.is_file():
            right = "give a jsonl file of documents with title and text; `coterie data prepare hotpotqa` writes one"
            yield "workflow.corpus", f"{self.corpus}: no such file; {right}"

    @property
    def searches_optionally(self) -> bool:
        """True if the workflow also runs without a retriever."""
        return False

    @property
    def retriever(self) -> Local | Remote | FunctionRetriever:
        if self.search_tool is not None:
            return FunctionRetriever(self.search_tool)
        place = self.corpus or self.server
        return FunctionRetriever(lambda _: []) if place is None else retriever(place)


@dataclass(frozen=True)
class Evidence:
    """The documents that help to answer a task: those with a title that the dataset names, or with the answer in them.

    Reads the reference answer, so it is for rewards only.
    """

    titles: frozenset[str]
    answers: tuple[str, ...]  # normalized; without yes and no, which any text may contain

    @classmethod
    def of(cls, task: Task) -> Evidence:
        """`supporting_facts` are HotpotQA's: [title, sentence number]."""
        facts = task.meta.get("supporting_facts", [])  # other datasets name none
        answers = task.answer if isinstance(task.answer, list | tuple) else [task.answer]
        normalized = (" ".join(words(str(answer))) for answer in answers)
        return cls(frozenset(title for title, _ in facts), tuple(text for text in normalized if text not in VERDICTS))

    def answered_in(self, text: str) -> bool:
        padded = f" {' '.join(words(text))} "
        return any(f" {answer} " in padded for answer in self.answers)

    def helps(self, document: Document) -> bool:
        return document.title in self.titles or self.answered_in(document.text)

    def recall(self, documents: Iterable[Document]) -> float:
        """The fraction of the named titles that were retrieved; without titles, 1 if any document has the answer."""
        found = list(documents)
        if self.titles:
            return len(self.titles & {document.title for document in found}) / len(self.titles)
        return float(any(self.helps(document) for document in found))


def new_evidence_reward(done: bool, before: float, after: float) -> float:
    """The fraction of the missing documents that a round found; if none was missing, 1 for stopping.

    found before   it searches            it writes DONE
    half           0 … 1 of the rest      0
    all            0                      1
    """
    return float(done) if before == 1 else (after - before) / (1 - before)


def is_done(line: str) -> bool:
    """True if a line of a plan says that nothing is missing."""
    return line.upper().strip(".") == "DONE"
