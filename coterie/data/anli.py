"""ANLI, adversarial natural language inference, in three rounds."""

from __future__ import annotations

from coterie.data.row import Hub, Raw, Row, Source, missing_text, other_fields
from coterie.rewards.nli import label


def parse(raw: Raw, name: str) -> Row | str:
    if problem := missing_text(raw, "premise", "hypothesis"):
        return problem
    if "label" not in raw:
        return f"no field label; it has {', '.join(raw)}"
    relation = label(str(raw["label"]))
    if relation is None:
        return f"label is {str(raw['label'])[:40]!r}, not one of e, n, c, 0, 1, 2, entailment, neutral, contradiction"
    question = f"Premise: {raw['premise']}\nHypothesis: {raw['hypothesis']}"
    return Row(str(raw["uid"]) if "uid" in raw else name, question, relation, other_fields(raw, "uid", "label"))


TRAIN = [Hub("facebook/anli", None, {f"train_r{i}": "train"}) for i in (1, 2, 3)]
TEST = [Hub("facebook/anli", None, {f"test_r{i}": "test"}) for i in (1, 2, 3)]
ABOUT = "does a text follow from another, contradict it, or neither"
ANLI = Source("anli", ABOUT, "nli", parse, (*TRAIN, *TEST))
