"""ANLI: does one text follow from another? Written to fool models, in three rounds."""

from __future__ import annotations

from coterie.data.row import Hub, Raw, Row, Source, lacks, others
from coterie.rewards.nli import label


def parse(raw: Raw, name: str) -> Row | str:
    problem = lacks(raw, "premise", "hypothesis")
    if problem:
        return problem
    if "label" not in raw:
        return f"no field label; it has {', '.join(raw)}"
    relation = label(str(raw["label"]))
    if relation is None:
        return f"label is {str(raw['label'])[:40]!r}, which is none of e, n, c, 0, 1, 2 or their words"
    question = f"Premise: {raw['premise']}\nHypothesis: {raw['hypothesis']}"
    return Row(str(raw["uid"]) if "uid" in raw else name, question, relation, others(raw, "uid", "label"))


ANLI = Source(
    "anli",
    "does a text follow from another, contradict it, or neither",
    "nli",
    parse,
    (
        *(Hub("facebook/anli", None, {f"train_r{i}": "train"}) for i in (1, 2, 3)),
        *(Hub("facebook/anli", None, {f"test_r{i}": "test"}) for i in (1, 2, 3)),
    ),
)
