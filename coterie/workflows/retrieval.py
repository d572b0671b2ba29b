"""Where teams search."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coterie.tools.search import Local, Remote, retriever


@dataclass(frozen=True, kw_only=True)
class Library:
    """Options of every team that searches: a file of documents, or a retrieval server."""

    corpus: Path | None = None  # a jsonl file of {"title": …, "text": …}; `coterie data prepare hotpotqa` writes one
    server: str | None = None  # the http address of a retrieval server, instead of a corpus
    documents: int = 3  # documents per query

    def __post_init__(self) -> None:
        if (self.corpus is None) == (self.server is None):
            raise ValueError("corpus: either a corpus or a server is needed to search in")
        if self.server is not None and not self.server.startswith(("http://", "https://")):
            raise ValueError(f"server: an address that begins with http:// or https:// is needed, not {self.server}")
        if self.documents < 1:
            raise ValueError(f"documents: at least 1, not {self.documents}")

    def problems(self, config: Any) -> Iterator[tuple[str, str]]:
        """Conflicts with the rest of the config, as (dotted key, message): here a corpus file that does not exist."""
        if self.corpus is not None and not self.corpus.is_file():
            right = "give a jsonl file of documents with title and text; `coterie data prepare hotpotqa` writes one"
            yield "workflow.corpus", f"{self.corpus}: no such file; {right}"

    @property
    def where(self) -> Local | Remote:
        return retriever(self.corpus or self.server or "")
