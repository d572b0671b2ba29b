"""Parsers of what a model wrote take time in proportion to it, and tell the model its mistake."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest

from coterie.envs.swe.checkout import Checkout
from coterie.envs.swe.edits import EditError, edited
from coterie.rewards.code.grader import code_in
from coterie.rewards.code.test_formats import ProgramTests
from coterie.tools import Call, execute
from coterie.tools.call_parser import BadCall, read_calls
from coterie.tools.tool import ToolError, as_tools
from coterie.workflows.verdict_parsing import items, verdict

DIGITS = "9" * 5000  # more than Python reads


def search(query: str, count: int = 3) -> str:
    """Look something up.

    query: what
    """
    raise ToolError(f"nothing of {query}")


TOOLS = as_tools([search])


@pytest.mark.parametrize(
    "text",
    [
        f'<tool_call>{{"name": "search", "arguments": {{"count": {DIGITS}}}}}</tool_call>',
        f'<tool_call>{{"name": "search", "arguments": "{{\\"count\\": {DIGITS}}}"}}</tool_call>',
        f'{{"name": "search", "parameters": {{"count": {DIGITS}}}}}',
        f'<|python_tag|>{{"name": "search", "parameters": {{"count": -{DIGITS}}}}}',
        f"```tool_code\nsearch(count={DIGITS})\n```",
        "```tool_code\nsearch({[]: 1})\n```",
        "```tool_code\nsearch({{}})\n```",
        '<tool_call>{"name": "\\ud800", "arguments": {}}</tool_call>',
        '<tool_call>{"name": "search", "arguments": [[[[1]]]]}</tool_call>',
        "<tool_call>" + "[" * 100_000,
    ],
)
def test_a_call_that_cannot_be_read_is_told_to_the_model(text: str) -> None:
    (call,) = read_calls(text, TOOLS)
    assert isinstance(call, BadCall)
    told = asyncio.run(execute(call, TOOLS, 5.0))
    assert told.startswith("Error: Bad") and len(told) < 400
    told.encode()  # a tokenizer takes it


@pytest.mark.parametrize(
    "call",
    [Call("sear\ud800ch", {}), Call("search", {"query": "\ud800"}), Call("search", {"que\udfffry": "x"})],
)
def test_what_a_tool_says_can_be_read_by_a_tokenizer(call: Call) -> None:
    asyncio.run(execute(call, TOOLS, 5.0)).encode()


@pytest.mark.parametrize("sign", ["-", "+"])
def test_a_line_number_that_no_file_has_is_told_to_the_model(sign: str) -> None:
    numbers = f"-{DIGITS} +1" if sign == "-" else f"-1 +{DIGITS}"
    diff = f"--- a/a.py\n+++ b/a.py\n@@ {numbers} @@\n-one\n+two\n"
    if sign == "+":  # only the first number is looked at
        assert edited(diff, {"a.py": "one\n"}) == {"a.py": "two\n"}
        return
    with pytest.raises(EditError, match=r"a.py: no file has a line 999999999…"):
        edited(diff, {"a.py": "one\n"})


@pytest.mark.parametrize("path", [".", "./", "./.", "a\0b", "..", "/etc/passwd"])
def test_a_path_that_names_no_file_is_told_to_the_model(path: str) -> None:
    block = f"{path}\n<<<<<<< SEARCH\n=======\nx\n>>>>>>> REPLACE\n"
    with pytest.raises(EditError, match="is no path within the project"):
        Checkout({"a.py": b"one\n"}, []).edited(block)


def test_a_path_is_spelled_in_one_way() -> None:
    block = "./src//./a.py\n<<<<<<< SEARCH\none\n=======\ntwo\n>>>>>>> REPLACE\n"
    assert edited(block, {"src/a.py": "one\n"}) == {"src/a.py": "two\n"}


def test_too_many_changes_are_told_to_the_model() -> None:
    with pytest.raises(EditError, match="1001 changes; at most 1000"):
        edited("--- a/a.py\n+++ b/a.py\n" + "@@ -1 +1 @@\n-one\n+one\n" * 1001, {"a.py": "one\n"})


def test_of_equal_places_the_one_nearest_to_the_line_is_changed() -> None:
    diff = "--- a/a.py\n+++ b/a.py\n@@ -{} +1 @@\n-x\n+y\n"
    files = {"a.py": "x\nx\nx\nx\n"}
    assert [edited(diff.format(n), files)["a.py"].index("y") // 2 for n in (1, 2, 3, 4, 9)] == [0, 1, 2, 3, 3]


def refused(text: str) -> None:
    try:
        edited(text, {"a.py": "x\n" * 2000})
    except EditError:
        return


TESTS = ProgramTests("checks", ("",), stub="def f():\n", entry="f")
LINEAR: list[tuple[str, Callable[[str], Any], Callable[[int], str]]] = [
    ("a fence without an end", code_in, lambda n: "```" + "a" * n),
    ("fences", code_in, lambda n: "```py\n" * (n // 6)),
    ("spaces before a fence", code_in, lambda n: (" " * 1000 + "\n") * (n // 1000)),
    ("empty lines before a function", TESTS.complete, lambda n: "\n" * n),
    ("a header without an end", refused, lambda n: "--- " + "a" * n),
    ("headers", refused, lambda n: "--- a\n" * (n // 6)),
    ("headers of one file", refused, lambda n: "--- a\n+++ a\n" * (n // 12)),
    ("hunks and words", refused, lambda n: "--- a.py\n+++ a.py\n" + "@@ -1 +1 @@\n-x\n+x\nw\n" * 900 + "w\n" * n),
    ("many places", refused, lambda n: "--- a.py\n+++ a.py\n" + "@@ -1 +1 @@\n-x\n+x\n" * min(n // 18, 900)),
    ("fenced diffs", refused, lambda n: "```diff\n--- a\n" * (n // 14)),
    ("tool calls", lambda text: read_calls(text, TOOLS), lambda n: "<tool_call>" * (n // 11)),
    ("fenced code", lambda text: read_calls(text, TOOLS), lambda n: "```py\nx\n" * (n // 8)),
    ("spaces in a call", lambda text: read_calls(text, TOOLS), lambda n: "{" + " " * n),
    ("verdicts", verdict, lambda n: "verdict \\text" * (n // 13) + " " * n),
    ("marks", lambda text: items(text, 3), lambda n: ("query" + " " * 999 + "\n") * (n // 1000) + "1" * n),
]


@pytest.mark.parametrize(("parse", "text"), [row[1:] for row in LINEAR], ids=[row[0] for row in LINEAR])
def test_a_parser_takes_time_in_proportion_to_the_text(parse: Callable[[str], Any], text: Callable[[int], str]) -> None:
    """A quadratic one takes minutes for as much."""
    started = time.process_time()
    parse(text(300_000))
    assert time.process_time() - started < 3.0


@pytest.mark.parametrize(
    ("text", "program"),
    [
        ("```python\na\n```", "a\n"),
        ("```\na\n```\n```py\nb\n```\n```js\nc\n```", "b\n"),
        ("  ```Python x\na\n  ``` end\nb", "a\n"),
        ("```python\na", "a"),
        ("```python\n", ""),
        ("```python", None),
        ("say ```python\nx y", None),
        ("```py\na\x0cb\r\n```", "a\x0cb\r\n"),
        ("```py\na\n```py\nb\n```\nc", "b\n"),  # the first was not closed
        ("x = 1", "x = 1"),
    ],
)
def test_the_program_of_a_text_is_its_last_python_block(text: str, program: str | None) -> None:
    assert code_in(text) == program
