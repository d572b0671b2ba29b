"""HotpotQA: questions that take two articles to answer."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from coterie.data.row import Hub, Raw, Row, Source, lacks, others


def parse(raw: Raw, name: str) -> Row | str:
    """`meta.context` lists [title, sentences], `meta.supporting_facts` [title, the number of a sentence]."""
    problem = lacks(raw, "question", "answer")
    if problem:
        return problem
    try:
        facts = pairs(raw.get("supporting_facts", []), "title", "sent_id")
        context = pairs(raw.get("context", []), "title", "sentences")
    except (ValueError, TypeError, KeyError):
        return "context and supporting_facts are not lists of pairs"
    given = next((str(raw[key]) for key in ("id", "_id") if key in raw), name)
    meta = others(raw, "question", "answer", "id", "_id") | {"supporting_facts": facts, "context": context}
    return Row(given, raw["question"], raw["answer"], meta)


def pairs(column: Any, first: str, second: str) -> list[list[Any]]:
    """The same whether a file has pairs or, as the hub does, a list of firsts and a list of seconds."""
    both = zip(column[first], column[second], strict=True) if isinstance(column, dict) else column
    return [[one, other] for one, other in both]


def article(sentences: Iterable[str]) -> str:
    """Sentences as a text. Some files keep the space between two at the beginning of the second, others nowhere."""
    return " ".join(filter(None, (sentence.strip() for sentence in sentences)))


HOTPOTQA = Source(
    "hotpotqa",
    "questions that take two articles to answer",
    "qa",
    parse,
    (Hub("hotpotqa/hotpot_qa", "distractor", {"train": "train", "validation": "test"}),),
)
