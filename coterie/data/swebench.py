"""SWE-bench: issues of real projects, the patch that fixed them, and the tests that it made pass."""

from __future__ import annotations

import json
from typing import Any

from coterie.data.row import Hub, Raw, Row, Source, missing_text, other_fields

TESTS = ("FAIL_TO_PASS", "PASS_TO_PASS")


def parse(raw: Raw, name: str) -> Row | str:
    if problem := missing_text(raw, "instance_id", "repo", "base_commit", "problem_statement", "patch", "test_patch"):
        return problem
    tests = {key: names(raw.get(key)) for key in TESTS}
    unreadable = [key for key, listed in tests.items() if listed is None]
    if unreadable:
        return f"{unreadable[0]} is not a list of tests"
    if not tests["FAIL_TO_PASS"]:
        return "FAIL_TO_PASS is empty: no test shows whether the issue is fixed"
    meta = other_fields(raw, "instance_id", "problem_statement", "patch") | tests
    return Row(raw["instance_id"], raw["problem_statement"], raw["patch"], meta)


def names(column: Any) -> list[str] | None:
    """A list of tests, or its JSON text, as on the hub; None for anything else."""
    try:
        listed = json.loads(column) if isinstance(column, str) else column
    except ValueError:
        return None
    return listed if isinstance(listed, list) and all(isinstance(name, str) for name in listed) else None


HUB = Hub("princeton-nlp/SWE-bench_Lite", None, {"test": "test"})
ABOUT = "issues of real projects, with the tests that a patch must pass"
SWEBENCH = Source("swebench", ABOUT, "native", parse, (HUB,), split="test")
