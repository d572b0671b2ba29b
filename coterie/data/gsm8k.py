"""GSM8K: grade-school word problems with a number as answer."""

from __future__ import annotations

from coterie.data.row import Hub, Raw, Row, Source, missing_text
from coterie.rewards.answer_extraction import after_hashes, last_number


def parse(raw: Raw, name: str) -> Row | str:
    if problem := missing_text(raw, "question", "answer"):
        return problem
    answer = after_hashes(raw["answer"])
    if answer is None or last_number(answer) is None:
        return "the answer does not end in `#### number`"
    return Row(name, raw["question"], answer.replace(",", ""), {"solution": raw["answer"]})


HUB = Hub("openai/gsm8k", "main", {"train": "train", "test": "test"})
GSM8K = Source("gsm8k", "grade-school word problems", "number", parse, (HUB,))
