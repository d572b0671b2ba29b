"""Write LeetCode problems or HumanEval as rows in MBPP's format, for coder and tester.

    python recipes/results/mbpp_tests/prepare.py leetcode train_leetcode.jsonl leetcode_train.jsonl
    python recipes/results/mbpp_tests/prepare.py humaneval HumanEval.jsonl humaneval_test.jsonl

A row has a description, a reference program that defines the function, and asserts on it. Left out are problems whose
tests are no plain asserts on one function, such as those on linked lists, and those whose reference program fails.
"""

from __future__ import annotations

import ast
import asyncio
import json
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from coterie.rewards.code.grader import run_tests
from coterie.rewards.code.test_formats import read_tests

Row = dict[str, Any]
# What LeetCode imports for its solutions.
IMPORTS = """import bisect, collections, functools, heapq, itertools, math, operator, random, re, string
from bisect import *
from collections import *
from functools import *
from heapq import *
from itertools import *
from math import *
from typing import *
"""
STATEMENT = re.compile(r"\n\n(.*?)\s*Please complete the following python code precisely:", re.DOTALL)
ENTRY = re.compile(r"check\(Solution\(\)\.(\w+)\)")


def from_leetcode(number: int, row: Row) -> Row | None:
    """The method of a `Solution` as a function of its own."""
    statement, entry = STATEMENT.search(row["problem"]), ENTRY.search(row["tests"]["functional"])
    if statement is None or entry is None:
        return None
    name, program = entry[1], f"{IMPORTS}\n{row['solutions'].rstrip()}\n"
    arguments = next((_arguments(node)[1:] for node in _functions(program) if node.name == name), [])
    asserts = list(asserts_in(row["tests"]["functional"], name, arguments))
    call = f"{name}({', '.join(arguments)})"
    program += f"\n\ndef {call}:\n    return Solution().{call}\n"
    return _row(f"leetcode/{number}", statement[1], program, asserts)


def from_humaneval(number: int, row: Row) -> Row | None:
    """The docstring as description; it may have examples."""
    name, program = row["entry_point"], row["prompt"] + row["canonical_solution"]
    function = next(node for node in _functions(program) if node.name == name)
    asserts = list(asserts_in(row["test"], name, _arguments(function)))
    return _row(row["task_id"], ast.get_docstring(function) or "", program, asserts)


def _row(task: str, text: str, program: str, asserts: list[str]) -> Row | None:
    if not asserts or not text.strip():
        return None
    return {"task_id": task, "text": text.strip(), "code": program, "test_list": asserts, "test_setup_code": ""}


def asserts_in(source: str, name: str, arguments: list[str]) -> Iterator[str]:
    """The asserts of `check(candidate)` on one call of the function with literals, given by position."""
    (check,) = (node for node in _functions(source) if node.name == "check")
    for statement in check.body:
        if not isinstance(statement, ast.Assert):
            continue
        calls = [node for node in ast.walk(statement.test) if _is_call_of(node, "candidate")]
        if len(calls) == 1 and _by_position(calls[0], name, arguments):
            yield ast.unparse(ast.Assert(statement.test))


def _by_position(call: ast.Call, name: str, arguments: list[str]) -> bool:
    """Call the function itself, without keywords; False if a value is no literal or an argument is missing."""
    given = {keyword.arg: keyword.value for keyword in call.keywords}
    if not given.keys() <= {*arguments}:
        return False
    values = [*call.args, *(given[argument] for argument in arguments[len(call.args) :] if argument in given)]
    if len(values) != len(call.args) + len(given) or not all(map(_is_literal, values)):
        return False
    call.func, call.args, call.keywords = ast.Name(name), values, []
    return True


def _is_literal(node: ast.expr) -> bool:
    try:
        ast.literal_eval(node)
    except (ValueError, TypeError):
        return False
    return True


def _is_call_of(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == name


def _functions(source: str) -> list[ast.FunctionDef]:
    return [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef)]


def _arguments(function: ast.FunctionDef) -> list[str]:
    return [argument.arg for argument in function.args.args]


async def passes(row: Row) -> bool:
    """Whether the reference program passes its asserts."""
    verdict = await run_tests(row["code"], read_tests({"test_list": row["test_list"]}))
    return verdict.passed == verdict.total


FORMATS: dict[str, Callable[[int, Row], Row | None]] = {"leetcode": from_leetcode, "humaneval": from_humaneval}


async def prepare(kind: str, source: Path, target: Path) -> None:
    rows = [json.loads(line) for line in source.read_text().splitlines()]
    found = [row for number, one in enumerate(rows) if (row := FORMATS[kind](number, one)) is not None]
    kept = [row for row, right in zip(found, await asyncio.gather(*map(passes, found)), strict=True) if right]
    target.write_text("".join(json.dumps(row) + "\n" for row in kept))
    print(f"{target}: {len(kept)} of {len(rows)} rows; {len(rows) - len(found)} without plain asserts, "
          f"{len(found) - len(kept)} whose reference program fails")  # fmt: skip


if __name__ == "__main__":
    if len(sys.argv) != 4 or sys.argv[1] not in FORMATS:
        sys.exit(__doc__)
    asyncio.run(prepare(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])))
