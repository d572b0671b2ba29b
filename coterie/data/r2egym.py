"""R2E-Gym: commits of real projects with the expected outcome of each test."""

from __future__ import annotations

import json
from typing import Any

from coterie.data.row import Hub, Raw, Row, Source, missing_text, other_fields

PASSED = "PASSED"


def parse(raw: Raw, name: str) -> Row | str:
    """A row has no patch; `meta.expected` has the expected outcome of each test."""
    if problem := missing_text(
        raw, "repo_name", "commit_hash", "docker_image", "problem_statement", "expected_output_json"
    ):
        return problem
    expected = outcomes(raw["expected_output_json"])
    if expected is None:
        return "expected_output_json is not an object of tests and outcomes"
    if PASSED not in expected.values():
        return "no test is expected to pass"
    meta = other_fields(raw, "problem_statement", "expected_output_json", "prompt") | {"expected": expected}
    return Row(f"{raw['repo_name']}/{raw['commit_hash']}", raw["problem_statement"], None, meta)


def outcomes(text: str) -> dict[str, str] | None:
    try:
        read: Any = json.loads(text)
    except ValueError:
        return None
    fits = isinstance(read, dict) and read and all(isinstance(outcome, str) for outcome in read.values())
    return read if fits else None


HUB = Hub("R2E-Gym/R2E-Gym-Subset", None, {"train": "train"})
ABOUT = "commits of real projects, with the outcome of each test; to run with clones (--repositories)"
R2EGYM = Source("r2egym", ABOUT, "native", parse, (HUB,), split="train")
