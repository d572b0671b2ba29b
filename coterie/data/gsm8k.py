"""GSM8K: school problems in words, with a number for an answer."""

from __future__ import annotations

from coterie.data.row import Hub, Raw, Row, Source, lacks
from coterie.rewards.answer_extraction import last_number, marked


def parse(raw: Raw, name: str) -> Row | str:
    problem = lacks(raw, "question", "answer")
    if problem:
        return problem
    answer = marked(raw["answer"])
    if answer is None or last_number(answer) is None:
        return "the answer does not end in `#### number`"
    return Row(name, raw["question"], answer.replace(",", ""), {"solution": raw["answer"]})


GSM8K = Source(
    "gsm8k",
    "school problems in words",
    "number",
    parse,
    (Hub("openai/gsm8k", "main", {"train": "train", "test": "test"}),),
)
