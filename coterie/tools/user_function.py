"""Calls a user's function in place of a built-in tool: the workflow options `search_tool` and `python_tool`."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from coterie.tools.bm25 import Document
from coterie.tools.search import Hit
from coterie.tools.tool import ToolError
from coterie.tools.tool_loop import MODEL_ERRORS
from coterie.watchdog import run_in_daemon_thread

LISTS = ("documents", "results", "output")  # fields and attributes that hold the documents of a search result
TEXTS = ("text", "content", "contents")  # fields of a document that hold its text


async def call_function(function: Callable[..., Any], seconds: float, argument: str) -> Any:
    """The result of a function, async or not. Raises ToolError after a timeout, and for `MODEL_ERRORS`."""
    try:
        async with asyncio.timeout(seconds):
            if inspect.iscoroutinefunction(function):
                return await function(argument)
            return await run_in_daemon_thread(function, argument)
    except TimeoutError:
        raise ToolError(f"Timeout: {function.__name__} took more than {seconds:g} s") from None
    except MODEL_ERRORS as error:
        raise ToolError(f"{type(error).__name__}: {error}") from error


@dataclass(frozen=True)
class FunctionRetriever:
    """Searches with a function `(query) → documents`.

    A document is a text, or a mapping with `title` and `text` (or `content`). The list may be the result itself, or be
    under `documents` or `results` of a mapping; one text is one document.
    """

    function: Callable[..., Any]
    seconds: float = 20.0

    async def search(self, query: str, count: int) -> list[Hit]:
        found = await call_function(self.function, self.seconds, query)
        return [Hit(document, 0.0) for document in _documents(found, query)][:count]


def _documents(found: Any, query: str) -> Iterator[Document]:
    inner = next((found[name] for name in LISTS if isinstance(found, Mapping) and name in found), found)
    inner = getattr(inner, "output", inner)  # an object that wraps a tool's result, as in rLLM
    for number, one in enumerate(inner if isinstance(inner, list | tuple) else [inner]):
        title, text = _title_and_text(one, query)
        if text:
            yield Document(f"{query}#{number}" if title == query else title, title, text)


def _title_and_text(one: Any, query: str) -> tuple[str, str]:
    if not isinstance(one, Mapping):
        return query, "" if one is None else str(one)
    inside = one.get("document", one)  # retrieval servers wrap a document beside its score
    text = next((inside[name] for name in TEXTS if name in inside), None)
    if text is None:
        raise ToolError(f"search_tool: a document has {', '.join(TEXTS)}, not {', '.join(map(str, inside))}")
    return str(inside.get("title", query)), str(text)
