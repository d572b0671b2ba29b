"""HumanEval: Python functions to complete from their docstrings."""

from __future__ import annotations

from coterie.data.row import Hub, Raw, Row, Source, missing_text
from coterie.rewards.code.test_formats import unreadable


def parse(raw: Raw, name: str) -> Row | str:
    if problem := missing_text(raw, "task_id", "prompt", "entry_point", "canonical_solution", "test"):
        return problem
    stub = raw["prompt"]
    question = f"Complete this function and give the whole of it:\n```python\n{stub.strip()}\n```"
    tests = {"prompt": stub, "entry_point": raw["entry_point"], "test": raw["test"]}
    return unreadable(tests) or Row(raw["task_id"], question, stub + raw["canonical_solution"], {"tests": tests})


HUB = Hub("openai/openai_humaneval", None, {"test": "test"})
ABOUT = "Python functions to complete from their docstrings"
HUMANEVAL = Source("humaneval", ABOUT, "code", parse, (HUB,), split="test")
