"""Parse the unit tests of a program from the formats of datasets: APPS, TACO, LiveCodeBench, MBPP, HumanEval, …"""

from __future__ import annotations

import ast
import builtins
import json
import re
import symtable
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

CHECK = "__check__"  # replaces assert in test code
BUILTINS = set(dir(builtins))
WRONG_SHAPE = (ValueError, TypeError, KeyError, IndexError, AttributeError, SyntaxError, RecursionError)
# What LeetCode's judge predefines; solutions and tests in its style use these names without importing them.
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
class ProgramTests:
    """The tests of one program."""

    kind: Literal["stdin", "calls", "checks"]
    inputs: tuple[Any, ...]  # stdin: text · calls: a list of arguments · checks: the source of an assert
    expected: tuple[Any, ...] = ()  # stdin and calls only
    function: str = ""  # calls: the function to call
    script: str = ""  # checks: the test code, with each assert rewritten into a call of __check__
    prelude: str = ""  # code to run before the program
    names: tuple[str, ...] = ()  # checks: the names that the program must define
    stub: str = ""  # goes before a program that does not define `entry`, which is then only a function's body
    entry: str = ""

    def complete(self, program: str) -> str:
        """Prepend the stub if the program is only the body of a function."""
        defined = rf"^[ \t]*+(?:async[ \t]+)?def[ \t]+{re.escape(self.entry)}\b"
        is_body = self.stub and not re.search(defined, program, re.MULTILINE)
        return self.stub + program if is_body else program


def read_tests(truth: Any) -> ProgramTests:
    """Parse a dataset's tests, given as an object or as JSON text.

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
            return _checks(tests["functional"], prelude=LEETCODE)
        if "test_list" in tests:
            return _checks("\n".join([tests.get("test_setup_code") or "", *tests["test_list"]]))
        if "entry_point" in tests:
            return _humaneval(tests)
        if "inputs" in tests and "outputs" in tests:
            return _pairs(tests["inputs"], tests["outputs"], tests.get("fn_name") or "")
    found = ", ".join(tests) if isinstance(tests, Mapping) else type(tests).__name__
    raise ValueError(
        "reward code: the reference has no tests; it needs inputs and outputs, test_list, entry_point and test, "
        f"functional, or a list of tests, not {found}"
    )


def unreadable(tests: Any) -> str | None:
    """Why `read_tests` cannot parse these tests, or None."""
    try:
        read_tests(tests)
    except WRONG_SHAPE as error:
        return f"tests cannot be read: {type(error).__name__}: {str(error).removeprefix('reward code: ')}"
    return None


def _pairs(inputs: Sequence[Any], outputs: Sequence[Any], function: str) -> ProgramTests:
    if len(inputs) != len(outputs) or not inputs:
        counts = f"{len(inputs)} inputs and {len(outputs)} outputs"
        raise ValueError(f"reward code: {counts}; there must be as many of each, at least 1")
    if function:
        return ProgramTests("calls", tuple(inputs), tuple(outputs), function=function, prelude=LEETCODE)
    return ProgramTests("stdin", tuple(map(_lines, inputs)), tuple(map(_lines, outputs)))


def _lines(text: Any) -> str:
    return "\n".join(map(str, text)) if isinstance(text, list) else str(text)


def _listed(tests: Sequence[Mapping[str, Any]]) -> ProgramTests:
    first = tests[0]
    function = first.get("fn_name") or (first.get("metadata") or {}).get("func_name") or ""
    inputs, outputs = [test["input"] for test in tests], [test["output"] for test in tests]
    if first.get("testtype") == "functional":  # LiveCodeBench: one JSON argument per line
        inputs = [[json.loads(line) for line in text.splitlines() if line.strip()] for text in inputs]
        outputs = [json.loads(text) for text in outputs]
    return _pairs(inputs, outputs, function)


def _humaneval(tests: Mapping[str, Any]) -> ProgramTests:
    prompt, entry = tests.get("prompt") or "", tests["entry_point"]
    # The tests use imports and helper functions of the prompt, so it runs first, with `pass` as the function's body.
    prelude = prompt and prompt + "    pass\n"
    return _checks(f"{tests['test']}\n\ncheck({entry})", prelude=prelude, stub=prompt, entry=entry)


def _checks(script: str, prelude: str = "", stub: str = "", entry: str = "") -> ProgramTests:
    rewriter = _AssertRewriter()
    tree = ast.fix_missing_locations(rewriter.visit(ast.parse(script)))
    if not rewriter.sources:
        raise ValueError(f"reward code: the tests have no assert: {script[:200]!r}")
    code, sources = ast.unparse(tree), tuple(rewriter.sources)
    names = tuple(sorted(_undefined_names(code)))
    return ProgramTests("checks", sources, script=code, names=names, prelude=prelude, stub=stub, entry=entry)


def _undefined_names(script: str) -> set[str]:
    """The global names that test code uses but does not define.

    `set(f(1))` needs f and the builtin set; only tests that use builtins alone, as `sum(2, 3)`, need a program's sum.
    """
    whole = symtable.symtable(script, "tests.py", "exec")
    scopes, used = [whole], set()
    for scope in scopes:
        scopes += scope.get_children()
        used |= {found.get_name() for found in scope.get_symbols() if found.is_referenced() and found.is_global()}
    used -= {found.get_name() for found in whole.get_symbols() if found.is_assigned() or found.is_imported()}
    used -= {CHECK}
    return used - BUILTINS or used


class _AssertRewriter(ast.NodeTransformer):
    """Rewrites asserts into calls that report instead of raising: `assert f(1) == 2` → `__check__(0, lambda: …)`."""

    def __init__(self) -> None:
        self.sources: list[str] = []

    def visit_Assert(self, node: ast.Assert) -> ast.stmt:
        inside = {type(part) for part in ast.walk(node.test)}
        # A lambda cannot contain these; an assert of a constant would always pass.
        if inside & {ast.NamedExpr, ast.Await, ast.Yield, ast.YieldFrom} or isinstance(node.test, ast.Constant):
            return node
        number = len(self.sources)
        self.sources.append(ast.unparse(node))
        match node.test:
            case ast.Compare(left=left, ops=[ast.Eq()], comparators=[right]):
                sides = [left, right]
            case test:
                sides = [test]
        return ast.Expr(ast.Call(ast.Name(CHECK, ast.Load()), [ast.Constant(number), *map(_as_lambda, sides)], []))


def _as_lambda(expression: ast.expr) -> ast.Lambda:
    nothing = ast.arguments(posonlyargs=[], args=[], kwonlyargs=[], kw_defaults=[], defaults=[])
    return ast.Lambda(nothing, expression)
