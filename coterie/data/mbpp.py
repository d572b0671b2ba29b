"""MBPP: short Python functions, each described in a sentence."""

from __future__ import annotations

from typing import TYPE_CHECKING

from coterie.data.row import Hub, Raw, Row, Source, missing_text
from coterie.rewards.code.test_formats import unreadable

if TYPE_CHECKING:
    from coterie.types import Split


def parse(raw: Raw, name: str) -> Row | str:
    """The question shows the first test, because the description does not name the function."""
    task = "text" if "text" in raw else "prompt"  # in the sanitized version
    if problem := missing_text(raw, task, "code"):
        return problem
    asserts = raw.get("test_list")
    if not isinstance(asserts, list) or not asserts or not all(isinstance(line, str) for line in asserts):
        return "test_list is not a list of asserts"
    before = "\n".join([*(raw.get("test_imports") or []), raw.get("test_setup_code") or ""]).strip()
    tests = {"test_list": asserts, "test_setup_code": before}
    number = raw["task_id"] if isinstance(raw.get("task_id"), int) else None
    question = f"{raw[task]}\nYour code must pass this test:\n{asserts[0]}"
    row_id = name if number is None else f"mbpp/{number}"
    return unreadable(tests) or Row(row_id, question, raw["code"], {"tests": tests}, split_of(number))


def split_of(number: int | None) -> Split | None:
    """The authors' split: 11 to 510 are the test; 1 to 10 are few-shot examples."""
    return None if number is None else "test" if 10 < number <= 510 else "train"


SPLITS: dict[str, Split] = {"train": "train", "validation": "train", "prompt": "train", "test": "test"}
HUB = Hub("google-research-datasets/mbpp", "full", SPLITS)
MBPP = Source("mbpp", "short Python functions described in a sentence", "code", parse, (HUB,))
