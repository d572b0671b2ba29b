"""Issues of your own projects: a folder or a git repository, and test commands that fail until the issue is fixed."""

from __future__ import annotations

import json
from pathlib import Path

from coterie.data.row import Raw, Row, Source, missing_text


def parse(raw: Raw, name: str) -> Row | str:
    if problem := missing_text(raw, "issue", "repository") or tests_problem(raw) or texts_problem(raw):
        return problem
    meta = {
        "repository": raw["repository"],
        "commit": raw.get("commit"),
        "tests": [raw["tests"]] if isinstance(raw["tests"], str) else raw["tests"],
        "test_files": raw.get("test_files") or {},
    }
    return Row(str(raw.get("id", name)), raw["issue"], raw.get("patch"), meta)


def parse_resolved(raw: Raw, name: str) -> Row | str:
    """Like `parse`, for a row with an absolute path: also checks that the repository exists."""
    row = parse(raw, name)
    if isinstance(row, Row) and not Path(row.meta["repository"]).is_dir():
        return f"repository: there is no folder {row.meta['repository']}"
    return row


def tests_problem(raw: Raw) -> str | None:
    """What is wrong with a row's tests, or None."""
    tests, files = raw.get("tests"), raw.get("test_files")
    listed = tests if isinstance(tests, list) else [tests]
    if not listed or not all(isinstance(command, str) and command.strip() for command in listed):
        return f"tests is {json.dumps(tests)[:40]}; it must list commands that fail until the issue is fixed"
    if files and not (isinstance(files, dict) and all(isinstance(text, str) for text in files.values())):
        return f"test_files is {json.dumps(files)[:40]}; it must map paths to texts"
    return None


def texts_problem(raw: Raw) -> str | None:
    """What is wrong with a row's optional texts, or None."""
    wrong = [name for name in ("commit", "patch") if not isinstance(raw.get(name), str | None)]
    return f"{wrong[0]} is {json.dumps(raw[wrong[0]])[:40]}, not text" if wrong else None


ABOUT = "issues of your own projects: rows with issue, repository and tests (--source)"
SWE = Source("swe", ABOUT, "native", parse_resolved, paths=("repository",))
