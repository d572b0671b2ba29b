"""DeepCoder: programming problems of several contests, each with its own format of tests."""

from __future__ import annotations

import json
from typing import Any

from coterie.data.row import Hub, Raw, Row, Source, missing_text
from coterie.rewards.code.test_formats import unreadable


def parse(raw: Raw, name: str) -> Row | str:
    """A row of the hub, or in rLLM's layout, which calls the problem `question` and the tests `ground_truth`."""
    if "problem" not in raw and "question" in raw and "ground_truth" in raw:
        raw = {**raw, "problem": raw["question"], "tests": raw["ground_truth"]}
    if problem := missing_text(raw, "problem"):
        return problem
    if "tests" not in raw:
        return f"no field tests; it has {', '.join(raw)}"
    try:
        tests = json.loads(raw["tests"]) if isinstance(raw["tests"], str) else raw["tests"]
    except ValueError as error:
        return f"tests are not JSON: {error}"
    if isinstance(tests, list) and isinstance(raw.get("metadata"), dict):  # LiveCodeBench may name the function here
        tests = [{"metadata": raw["metadata"], **test} if isinstance(test, dict) else test for test in tests]
    starter = raw.get("starter_code") or ""
    question = raw["problem"] + (f"\n\nStart from this code:\n```python\n{starter.strip()}\n```" if starter else "")
    return unreadable(tests) or Row(name, question, solution(raw.get("solutions")), {"tests": tests})


def solution(solutions: Any) -> str | None:
    """A reference solution, or None."""
    first = solutions[0] if isinstance(solutions, list) and solutions else solutions
    return first if isinstance(first, str) and first.strip() else None


HUB = "agentica-org/DeepCoder-Preview-Dataset"
HUBS = (
    Hub(HUB, "primeintellect", {"train": "train"}),
    Hub(HUB, "taco", {"train": "train"}),
    Hub(HUB, "lcbv5", {"train": "train", "test": "test"}),
    Hub(HUB, "codeforces", {"test": "test"}),
)
DEEPCODER = Source("deepcoder", "programming problems of contests, with tests", "code", parse, HUBS)
