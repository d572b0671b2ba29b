"""rLLM's retrieval tool, as options of the workflows that search."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from coterie.tools.search import Remote

SERVER = "http://127.0.0.1:8000"


@dataclass(frozen=True)
class LocalRetrievalTool:
    """A retrieval server; by default the one in the environment variable RETRIEVAL_SERVER_URL."""

    server_url: str | None = None
    max_results: int | None = None  # documents per query; None: the workflow's default

    @property
    def options(self) -> dict[str, Any]:
        """The options of a workflow that search with it."""
        address = self.server_url or os.environ.get("RETRIEVAL_SERVER_URL", SERVER)
        documents = {} if self.max_results is None else {"documents": self.max_results}
        return {"server": f"{address.rstrip('/')}/retrieve", **documents}

    async def execute(self, query: str) -> list[dict[str, str]]:
        """The documents for a query, for workflows that call the tool themselves."""
        hits = await Remote(self.options["server"]).search(query, self.max_results or 10)
        return [{"title": hit.document.title, "content": hit.document.text} for hit in hits]
