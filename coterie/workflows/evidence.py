"""Whether what was found helps to answer. Reads the answer key: only for rewards, when all is said."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from coterie.rewards.qa import VERDICTS, words
from coterie.tools.bm25 import Document
from coterie.types import Task


@dataclass(frozen=True)
class Evidence:
    """What a good search finds: the titles that a data set names, and documents that have the answer in them."""

    titles: frozenset[str]
    answers: tuple[str, ...]  # as words; none where it is yes or no, which any text may say

    @classmethod
    def of(cls, task: Task) -> Evidence:
        """`supporting_facts` are HotpotQA's: [title, the number of a sentence]."""
        facts = task.meta.get("supporting_facts", [])  # of a data set, which may name none
        answers = task.answer if isinstance(task.answer, list | tuple) else [task.answer]
        said = (" ".join(words(str(answer))) for answer in answers)
        return cls(frozenset(title for title, _ in facts), tuple(text for text in said if text not in VERDICTS))

    def answered_in(self, text: str) -> bool:
        padded = f" {' '.join(words(text))} "
        return any(f" {answer} " in padded for answer in self.answers)

    def helps(self, document: Document) -> bool:
        return document.title in self.titles or self.answered_in(document.text)

    def recall(self, documents: Iterable[Document]) -> float:
        """The share of named titles that were found; without any, whether the answer stands somewhere."""
        found = list(documents)
        if self.titles:
            return len(self.titles & {document.title for document in found}) / len(self.titles)
        return float(any(self.helps(document) for document in found))
