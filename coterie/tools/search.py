"""Retrieval tools, `search` and `open_document`: BM25 over a local corpus, or a retrieval server."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Protocol

from coterie.tools.bm25 import Document, Index
from coterie.tools.tool import Tool, ToolError
from coterie.watchdog import run_in_daemon_thread


@dataclass(frozen=True)
class Hit:
    """A retrieved document and its relevance score."""

    document: Document
    score: float


class Retriever(Protocol):
    """Searches documents."""

    async def search(self, query: str, count: int) -> list[Hit]: ...


class DocumentStore(Protocol):
    """Looks up documents by name."""

    def open(self, name: str) -> Document: ...


class Local:
    """BM25 over a jsonl corpus: `{"title": …, "text": …}` per line, with `id` if titles are not unique."""

    def __init__(self, corpus: Path) -> None:
        self.index = _index(corpus.resolve())

    async def search(self, query: str, count: int) -> list[Hit]:
        return [Hit(document, score) for document, score in await run_in_daemon_thread(self.index.search, query, count)]

    def open(self, name: str) -> Document:
        """Look up a document by id or title."""
        found = self.index.find(name)
        if found is None:
            raise ToolError(f"NoSuchDocument: nothing is called {name[:100]!r}; search gives the names")
        return found


@dataclass(frozen=True)
class Remote:
    """A retrieval server with the API of Search-R1.

    POST {"queries": ["…"], "topk": 3, "return_scores": true} to its address; it returns
    {"result": [[{"document": {"id": "7", "contents": "\\"Title\\"\\nText"}, "score": 0.9}, …]]}, a list for each query.
    A document may also have `title` and `text` instead of `contents`. The request has `query` and `top_k`, too, for
    servers such as rLLM's, which return {"results": […]} for one query.
    """

    address: str
    deadline: float = 20.0  # seconds

    async def search(self, query: str, count: int) -> list[Hit]:
        return await run_in_daemon_thread(self._search, query, count)

    def _search(self, query: str, count: int) -> list[Hit]:
        request = {"queries": [query], "topk": count, "return_scores": True, "query": query, "top_k": count}
        body = json.dumps(request).encode()
        posted = urllib.request.Request(self.address, body, {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(posted, timeout=self.deadline) as reply:
                answer = json.load(reply)
                (found,) = [answer["results"]] if "results" in answer else answer["result"]
                return [_hit(each) for each in found]
        except (urllib.error.URLError, TimeoutError) as error:
            raise ToolError(f"SearchFailed: {self.address}: {error}") from None
        except (ValueError, KeyError, TypeError) as error:
            raise ToolError(f"SearchFailed: {self.address} answered something else: {error!r}") from None


def retriever(place: str | Path) -> Local | Remote:
    """The retriever for a place: `http://…` is a retrieval server, anything else a jsonl file."""
    return Remote(str(place)) if str(place).startswith(("http://", "https://")) else Local(Path(place))


def search_tool(where: Retriever, count: int = 3) -> Tool:
    """A tool that shows the `count` best documents."""

    async def search(query: str) -> str:
        """Search the documents for a few words and return the best ones.

        query: what to look for
        """
        return listed(await where.search(query, count)) or "Nothing was found."

    return Tool(search, "search")


def open_tool(where: DocumentStore) -> Tool:
    """A tool that shows one document in full."""

    async def open_document(title: str) -> str:
        """Return the whole text of a document.

        title: its title, as search shows it
        """
        document = where.open(title)
        return f"{document.title}\n{document.text}"

    return Tool(open_document, "open_document")


def listed(hits: Sequence[Hit], most: int = 1500) -> str:
    """Documents as text for a prompt, numbered from 1, each truncated to `most` characters."""
    parts = [(hit.document.title, hit.document.text) for hit in hits]
    return "\n\n".join(
        f"[{number}] {title}\n{text if len(text) <= most else text[:most] + ' …'}"
        for number, (title, text) in enumerate(parts, 1)
    )


def _hit(found: dict[str, object]) -> Hit:
    document, score = found["document"], found.get("score", 0.0)
    if not isinstance(document, dict) or not isinstance(score, int | float):
        raise TypeError(f"expected a document and a score, got {str(found)[:100]}")
    title, _, text = str(document.get("contents", "")).partition("\n")
    title, text = document.get("title", title.strip('"')), document.get("text", text)
    return Hit(Document(str(document.get("id", title)), str(title), str(text)), float(score))


@cache
def _index(corpus: Path) -> Index:
    return Index.of(corpus)
