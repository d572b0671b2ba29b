"""Laws of how changes to files are read in replies."""

from __future__ import annotations

import time

import pytest

from coterie.envs.swe.edits import EditError, diff_of, edited
from coterie.workflows.verdict_parsing import items, verdict

FILES = {"a.py": "one\ntwo\nthree\ntwo\n", "b/c.py": "x = 1"}


@pytest.mark.parametrize(
    ("text", "changed"),
    [
        ("a.py\n<<<<<<< SEARCH\none\n=======\nONE\n>>>>>>> REPLACE", {"a.py": "ONE\ntwo\nthree\ntwo\n"}),
        (
            "**File: `a.py`**\n```python\n<<<<<<< SEARCH\none\n=======\n>>>>>>> REPLACE\n```",
            {"a.py": "two\nthree\ntwo\n"},
        ),
        ("./b/c.py\n<<<<<<< SEARCH\nx = 1\n=======\nx = 2\n>>>>>>> REPLACE", {"b/c.py": "x = 2"}),
        ("new.py\n<<<<<<< SEARCH\n=======\ny\n>>>>>>> REPLACE", {"new.py": "y\n"}),
        ("--- a/a.py\n+++ b/a.py\n@@ -3,2 +3,2 @@\n three\n-two\n+TWO\n", {"a.py": "one\ntwo\nthree\nTWO\n"}),
        ("Look:\n```diff\n--- a.py\n+++ a.py\n@@ -4 +4 @@\n-two\n+2\n```\nDone.", {"a.py": "one\ntwo\nthree\n2\n"}),
        ("--- /dev/null\n+++ b/d.py\n@@ -0,0 +1 @@\n+new\n", {"d.py": "new\n"}),
    ],
)
def test_a_change_is_made_where_it_says(text: str, changed: dict[str, str]) -> None:
    assert edited(text, FILES) == FILES | changed


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nothing", "neither a search/replace block nor a diff"),
        ("z.py\n<<<<<<< SEARCH\none\n=======\n1\n>>>>>>> REPLACE", "z.py: there is no such file"),
        ("a.py\n<<<<<<< SEARCH\nfour\n=======\n1\n>>>>>>> REPLACE", "does not stand there"),
        ("a.py\n<<<<<<< SEARCH\ntwo\n=======\n1\n>>>>>>> REPLACE", "stands there 2 times"),
        ("a.py\n<<<<<<< SEARCH\n=======\n1\n>>>>>>> REPLACE", "there is such a file already"),
        ("../a.py\n<<<<<<< SEARCH\none\n=======\n1\n>>>>>>> REPLACE", "no path within the project"),
        ("--- a/a.py\n+++ /dev/null\n@@ -1 +0,0 @@\n-one\n", "cannot be removed"),
    ],
)
def test_a_change_that_cannot_be_made_says_why(text: str, message: str) -> None:
    with pytest.raises(EditError, match=message):
        edited(text, FILES)


@pytest.mark.parametrize(
    "after",
    [
        {"a.py": "one\n2\nthree\ntwo"},
        {"b/c.py": "x = 1\n", "e.py": "\n\n"},
        {"a.py": "\n"},
        {"a.py": "one\x0c1\ntwo\r\nthree\u2028\ntwo"},
    ],
)
def test_a_diff_gives_back_what_it_was_made_of(after: dict[str, str]) -> None:
    after = FILES | after
    assert edited(diff_of(FILES, after), FILES) == after


@pytest.mark.parametrize(
    "piece",
    ["a.py\n<<<<<<< SEARCH\n=======\n", "--- a\n+++ b\n", "```diff\n--- a\n", "@@ -1 +1 @@\n", "verdict ", "1."],
)
def test_no_text_takes_long_to_read(piece: str) -> None:
    started = time.thread_time()  # not the clock's: others may use this machine too
    text = piece * 20_000
    with pytest.raises(EditError):
        edited(text, FILES)
    verdict(text)
    items(text, 3)
    assert time.thread_time() - started < 3
