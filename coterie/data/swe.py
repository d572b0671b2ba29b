"""Issues of your own projects: a folder or a git repository, and commands that fail until the issue is closed."""

from __future__ import annotations

import json
from pathlib import Path

from coterie.data.row import Raw, Row, Source, lacks


def parse(raw: Raw, name: str) -> Row | str:
    problem = lacks(raw, "issue", "repository") or wrong_tests(raw) or wrong_texts(raw)
    if problem:
        return problem
    meta = {
        "repository": raw["repository"],
        "commit": raw.get("commit"),
        "tests": [raw["tests"]] if isinstance(raw["tests"], str) else raw["tests"],
        "test_files": raw.get("test_files") or {},
    }
    return Row(str(raw.get("id", name)), raw["issue"], raw.get("patch"), meta)


def parse_placed(raw: Raw, name: str) -> Row | str:
    """As `parse`; the repository, whose whole path is known here, must be there."""
    row = parse(raw, name)
    if isinstance(row, Row) and not Path(row.meta["repository"]).is_dir():
        return f"repository: there is no folder {row.meta['repository']}"
    return row


def wrong_tests(raw: Raw) -> str | None:
    """What is wrong with the tests of a row, or None."""
    tests, files = raw.get("tests"), raw.get("test_files")
    listed = tests if isinstance(tests, list) else [tests]
    if not listed or not all(isinstance(command, str) and command.strip() for command in listed):
        return f"tests is {json.dumps(tests)[:40]}; it should list commands that fail until the issue is closed"
    if files and not (isinstance(files, dict) and all(isinstance(text, str) for text in files.values())):
        return f"test_files is {json.dumps(files)[:40]}; it should be an object of paths and texts"
    return None


def wrong_texts(raw: Raw) -> str | None:
    """What is wrong with the texts that a row need not have, or None."""
    given = [name for name in ("commit", "patch") if raw.get(name) is not None]
    return next(
        (f"{name} is {json.dumps(raw[name])[:40]}, not text" for name in given if type(raw[name]) is not str), None
    )


SWE = Source(
    "swe",
    "issues of your own projects: rows with issue, repository and tests (--source)",
    "native",
    parse_placed,
    paths=("repository",),
)
