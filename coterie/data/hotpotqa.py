"""HotpotQA: multi-hop questions, each over two articles."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from coterie.data.row import Hub, Raw, Row, Source, missing_text, other_fields


def parse(raw: Raw, name: str) -> Row | str:
    """`meta.context` lists [title, sentences], `meta.supporting_facts` [title, sentence number]."""
    if problem := missing_text(raw, "question", "answer"):
        return problem
    try:
        facts = pairs(raw.get("supporting_facts", []), "title", "sent_id")
        context = pairs(raw.get("context", []), "title", "sentences")
    except (ValueError, TypeError, KeyError):
        return "context and supporting_facts are not lists of pairs"
    row_id = next((str(raw[key]) for key in ("id", "_id") if key in raw), name)
    meta = other_fields(raw, "question", "answer", "id", "_id") | {"supporting_facts": facts, "context": context}
    return Row(row_id, raw["question"], raw["answer"], meta)


def pairs(column: Any, first: str, second: str) -> list[list[Any]]:
    """Pairs from a list of pairs or, as on the hub, from two parallel lists."""
    both = zip(column[first], column[second], strict=True) if isinstance(column, dict) else column
    return [[one, other] for one, other in both]


def article(sentences: Iterable[str]) -> str:
    """Join sentences. Some files have a leading space in each sentence, others none."""
    return " ".join(filter(None, (sentence.strip() for sentence in sentences)))


HUB = Hub("hotpotqa/hotpot_qa", "distractor", {"train": "train", "validation": "test"})
HOTPOTQA = Source("hotpotqa", "questions that take two articles to answer", "qa", parse, (HUB,))
