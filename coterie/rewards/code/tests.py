"""Tests of programs, in the shapes in which data sets have them."""

from __future__ import annotations

import ast
import builtins
import json
import re
import symtable
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

CHECK = "__check__"  # what test code calls instead of asserting
PYTHONS = set(dir(builtins))
# What LeetCode's own judge has at hand; solutions and tests of that kind use it without importing it.
LEETCODE = """
import collections, datetime, functools, heapq, itertools, math, operator, re, string, sys
from bisect import bisect, bisect_left, bisect_right, insort
from collections import Counter, OrderedDict, defaultdict, deque
from functools import cache, cmp_to_key, lru_cache, partial, reduce
from heapq import heapify, heappop, heappush, heappushpop, heapreplace, nlargest, nsmallest
from itertools import accumulate, chain, combinations, count, cycle, groupby, pairwise, permutations, product, repeat
from itertools import starmap, zip_longest
from math import atan2, ceil, comb, cos, factorial, floor, gcd, inf, isqrt, lcm, log, log2, log10, perm, pi, sin, sqrt
from operator import add, and_, itemgetter, mul, or_, xor
from queue import PriorityQueue, Queue
from string import ascii_letters, ascii_lowercase, ascii_uppercase, digits
from typing import *

class ListNode:
    def __init__(self, val=0, next=None):
        self.val, self.next = val, next

class TreeNode:
    def __init__(self, val=0, left=None, right=None):
        self.val, self.left, self.right = val, left, right

def list_node(values):
    node = None
    for value in reversed(values):
        node = ListNode(value, node)
    return node

def is_same_list(one, other):
    while one and other and one.val == other.val:
        one, other = one.next, other.next
    return one is None and other is None

def tree_node(values):
    nodes = [None if value is None else TreeNode(value) for value in values]
    children = iter(nodes[1:])
    for node in nodes:
        if node:
            node.left, node.right = next(children, None), next(children, None)
    return nodes[0] if nodes else None

def is_same_tree(one, other):
    if one is None or other is None:
        return one is other
    return one.val == other.val and is_same_tree(one.left, other.left) and is_same_tree(one.right, other.right)
"""


@dataclass(frozen=True)
class Tests:
    """Tests of one program: each an input, with what should come of it unless the test's own code knows."""

    kind: Literal["stdin", "calls", "checks"]
    inputs: tuple[Any, ...]  # a text · a list of arguments · an assert's source
    expected: tuple[Any, ...] = ()  # of stdin and calls
    function: str = ""  # of calls
    script: str = ""  # of checks: the test code, each assert made a call of __check__
    before: str = ""  # to run before the program
    names: tuple[str, ...] = ()  # of checks: what the test code wants the program to define
    stub: str = ""  # what a program that does not define `entry` is the rest of
    entry: str = ""

    def whole(self, program: str) -> str:
        """The program, put behind what it completes where it is only the rest of a function."""
        if self.stub and not re.search(
            rf"^[ \t]*+(?:async[ \t]+)?def[ \t]+{re.escape(self.entry)}\b", program, re.MULTILINE
        ):
            return self.stub + program
        return program


def read_tests(truth: Any) -> Tests:
    """Tests from what a data set has, as an object or its JSON text.

    {"inputs": ["1 2\\n"], "outputs": ["3\\n"]}                          standard input and output
    {"fn_name": "add", "inputs": [[1, 2]], "outputs": [3]}               calls (TACO, APPS)
    [{"input": "1\\n2", "output": "3", "testtype": "functional", "metadata": {"func_name": "add"}}]   LiveCodeBench
    [{"type": "function_call", "fn_name": "add", "input": [1, 2], "output": 3}]                       DeepCoder
    {"test_list": ["assert add(1, 2) == 3"], "test_setup_code": ""}      MBPP
    {"prompt": "def add…", "entry_point": "add", "test": "def check…"}   HumanEval
    {"functional": "def check(candidate): …\\ncheck(Solution().add)"}    LeetCode, as rLLM has it
    """
    tests = json.loads(truth) if isinstance(truth, str) else truth
    if isinstance(tests, Sequence) and tests and all(isinstance(test, Mapping) for test in tests):
        return _listed(tests)
    if isinstance(tests, Mapping):
        if "functional" in tests:
            return _checks(tests["functional"], before=LEETCODE)
        if "test_list" in tests:
            return _checks("\n".join([tests.get("test_setup_code") or "", *tests["test_list"]]))
        if "entry_point" in tests:
            return _humaneval(tests)
        if "inputs" in tests and "outputs" in tests:
            return _pairs(tests["inputs"], tests["outputs"], tests.get("fn_name") or "")
    found = ", ".join(tests) if isinstance(tests, Mapping) else type(tests).__name__
    raise ValueError(
        "reward code: the reference has no tests; inputs and outputs, test_list, entry_point and test, functional, or "
        f"a list of tests are wanted, not {found}"
    )


def _pairs(inputs: Sequence[Any], outputs: Sequence[Any], function: str) -> Tests:
    if len(inputs) != len(outputs) or not inputs:
        raise ValueError(f"reward code: {len(inputs)} inputs and {len(outputs)} outputs; as many of both are wanted")
    if function:
        return Tests("calls", tuple(inputs), tuple(outputs), function=function, before=LEETCODE)
    return Tests("stdin", tuple(map(_lines, inputs)), tuple(map(_lines, outputs)))


def _lines(text: Any) -> str:
    return "\n".join(map(str, text)) if isinstance(text, list) else str(text)


def _listed(tests: Sequence[Mapping[str, Any]]) -> Tests:
    first = tests[0]
    function = first.get("fn_name") or (first.get("metadata") or {}).get("func_name") or ""
    inputs, outputs = [test["input"] for test in tests], [test["output"] for test in tests]
    if first.get("testtype") == "functional":  # LiveCodeBench: an argument a line, each as JSON
        inputs = [[json.loads(line) for line in text.splitlines() if line.strip()] for text in inputs]
        outputs = [json.loads(text) for text in outputs]
    return _pairs(inputs, outputs, function)


def _humaneval(tests: Mapping[str, Any]) -> Tests:
    prompt, entry = tests.get("prompt") or "", tests["entry_point"]
    # The prompt has imports and functions that its tests use: run first, with a body in the function to be written.
    before = prompt and prompt + "    pass\n"
    return _checks(f"{tests['test']}\n\ncheck({entry})", before=before, stub=prompt, entry=entry)


def _checks(script: str, before: str = "", stub: str = "", entry: str = "") -> Tests:
    change = _Asserts()
    tree = ast.fix_missing_locations(change.visit(ast.parse(script)))
    if not change.sources:
        raise ValueError(f"reward code: the tests assert nothing: {script[:200]!r}")
    code, sources = ast.unparse(tree), tuple(change.sources)
    names = tuple(sorted(_wanted(code)))
    return Tests("checks", sources, script=code, names=names, before=before, stub=stub, entry=entry)


def _wanted(script: str) -> set[str]:
    """The names that test code uses and does not define.

    `set(f(1))` wants f and Python's own set; only tests that call nothing else, as `sum(2, 3)`, want a program's sum.
    """
    whole = symtable.symtable(script, "tests.py", "exec")
    scopes, used = [whole], set()
    for scope in scopes:
        scopes += scope.get_children()
        used |= {found.get_name() for found in scope.get_symbols() if found.is_referenced() and found.is_global()}
    used -= {found.get_name() for found in whole.get_symbols() if found.is_assigned() or found.is_imported()}
    used -= {CHECK}
    return used - PYTHONS or used


class _Asserts(ast.NodeTransformer):
    """Makes each assert a call that reports instead of raising: `assert f(1) == 2` → `__check__(0, lambda: …)`."""

    def __init__(self) -> None:
        self.sources: list[str] = []

    def visit_Assert(self, node: ast.Assert) -> ast.stmt:
        inside = {type(part) for part in ast.walk(node.test)}
        # A lambda cannot hold these; a constant tests nothing and would be passed for free.
        if inside & {ast.NamedExpr, ast.Await, ast.Yield, ast.YieldFrom} or isinstance(node.test, ast.Constant):
            return node
        number = len(self.sources)
        self.sources.append(ast.unparse(node))
        match node.test:
            case ast.Compare(left=left, ops=[ast.Eq()], comparators=[right]):
                sides = [left, right]
            case test:
                sides = [test]
        return ast.Expr(ast.Call(ast.Name(CHECK, ast.Load()), [ast.Constant(number), *map(_later, sides)], []))


def _later(expression: ast.expr) -> ast.Lambda:
    nothing = ast.arguments(posonlyargs=[], args=[], kwonlyargs=[], kw_defaults=[], defaults=[])
    return ast.Lambda(nothing, expression)
