"""HotpotQA: questions that take two articles to answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from coterie.data.hotpotqa import HOTPOTQA, article
from coterie.envs.dataset_env import Known


@dataclass(frozen=True)
class HotpotQa(Known):
    """A question; `reward: qa` fits it. A team that is not to search reads its ten articles as `{context}`."""

    training = testing = HOTPOTQA
    gaps = ("context",)

    prompt: str = "{question}\n\nAnswer in a few words."

    def fields(self, meta: Mapping[str, Any]) -> dict[str, str]:
        articles = (f"{title}\n{article(sentences)}" for title, sentences in meta["context"])
        return {"context": "\n\n".join(articles)}
