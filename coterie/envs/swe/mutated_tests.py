"""Mutate test files to expose forged passes: each test is changed so that code which passed it honestly must fail it.

An object that equals everything, code that reads the expected value from its caller's frame, and a forged report all
still pass the mutated tests, which exposes them. Each test function is changed in one place: an expected value is
replaced, a comparison is inverted, or a failing assertion is added. Text is replaced in place, so that the code under
test cannot see from the rest of the file whether its tests are mutated.
"""

from __future__ import annotations

import ast
import random
import re
import string
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

Function = ast.FunctionDef | ast.AsyncFunctionDef
FAIL = "raise AssertionError"
# Decorators that run the whole function and let its exceptions through. Any other may expect an exception.
PLAIN_DECORATORS = re.compile(
    r"(pytest\.)?mark\.|((unittest\.)?mock\.)?patch\b|(unittest\.)?skip|parameterized|given\b|settings\b"
)
CATCHES = re.compile(r"raises|suppress|warn|fail|expect|error|ignore", re.IGNORECASE)
COMPOUND = (
    *(ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.If, ast.For, ast.AsyncFor, ast.While),
    *(ast.With, ast.AsyncWith, ast.Try, ast.TryStar, ast.Match),
)
EQUAL = {
    f"assert{kind}Equal" for kind in ("", "List", "Tuple", "Set", "Dict", "Sequence", "MultiLine", "Count", "Almost")
}
RAISES = ("raises", "assertRaises", "assertRaisesRegex")
ERRORS = ("BufferError", "FloatingPointError", "UnicodeTranslateError")  # hardly any code raises these
OPPOSITES = [*((ast.Eq, ast.NotEq), (ast.Lt, ast.GtE), (ast.Gt, ast.LtE), (ast.Is, ast.IsNot), (ast.In, ast.NotIn))]
SIGNS: dict[type[ast.cmpop], str] = {
    ast.Eq: "==", ast.NotEq: "!=", ast.Lt: "<", ast.GtE: ">=", ast.Gt: ">", ast.LtE: "<=", ast.Is: "is",
    ast.IsNot: "is not", ast.In: "in", ast.NotIn: "not in",
}  # fmt: skip
OPPOSITE = dict(OPPOSITES) | {other: one for one, other in OPPOSITES}
METHODS = [
    ("True", "False"), ("Equal", "NotEqual"), ("AlmostEqual", "NotAlmostEqual"), ("In", "NotIn"), ("Is", "IsNot"),
    ("IsNone", "IsNotNone"), ("IsInstance", "NotIsInstance"), ("Regex", "NotRegex"), ("Less", "GreaterEqual"),
    ("Greater", "LessEqual"),
]  # fmt: skip
OTHER_METHOD = {f"assert{one}": f"assert{other}" for pair in METHODS for one, other in (pair, pair[::-1])}
MAX_INT = 1 << 63  # larger ones may be too long to print
# How specific a mutation is: another value · the opposite comparison, or a value of another shape · the negation
VALUE, COMPARISON, NEGATION = 3, 2, 1


@dataclass(frozen=True)
class MutatedFile:
    """A mutated test file."""

    text: str
    tests: frozenset[str]  # the functions in it: `test_add`, `TestAdd.test_zero`


class Source(NamedTuple):
    """A file's text in bytes, as the positions of its syntax tree count it."""

    text: bytes
    lines: tuple[int, ...]  # the offset of each line

    @classmethod
    def of(cls, text: str) -> Source:
        content = text.encode()
        return cls(content, (0, *(found.end() for found in re.finditer(rb"\n", content))))

    def at(self, line: int, column: int) -> int:
        return self.lines[line - 1] + column


class Edit(NamedTuple):
    """Replaces the bytes from start to end."""

    start: int
    end: int
    text: str


class Mutation(NamedTuple):
    """One way to mutate a statement."""

    rank: int
    edits: tuple[Edit, ...]


def mutate_tests(text: str, rng: random.Random) -> MutatedFile | None:
    """Mutate every test function of a file; None if it has none or is not Python."""
    text = text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")
    tree = _parsed(text)
    functions = list(test_functions(tree)) if tree else []
    source, names = Source.of(text), frozenset(name for name, _ in functions)
    best = [_mutation(function, source, rng) for _, function in functions]
    plain = [_start(function, source) for _, function in functions]
    for edits in (best, plain) if functions else ():
        changed = _replaced(source, [edit for several in edits for edit in several])
        if _parsed(changed):
            return MutatedFile(changed, names)
    return None


def test_functions(node: ast.AST, inside: str = "") -> Iterator[tuple[str, Function]]:
    """The tests that unittest and pytest would collect, by qualified name."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, Function):
            if child.name.startswith("test") or child.name == "runTest":
                yield inside + child.name, child
            else:
                yield from test_functions(child, f"{inside}{child.name}.<locals>.")
        elif isinstance(child, ast.ClassDef):
            yield from test_functions(child, f"{inside}{child.name}.")
        else:
            yield from test_functions(child, inside)


def _mutation(function: Function, source: Source, rng: random.Random) -> list[Edit]:
    """The most specific mutation of a statement that every passing run of the test executes."""
    decorators = map(ast.unparse, function.decorator_list)
    if _leaves_early(function) or not all(map(PLAIN_DECORATORS.match, decorators)):
        return _start(function, source)
    found = [choice for statement in reached(function.body) for choice in mutations_of(statement, source, rng)]
    if not found:
        return _end(function, source)
    best = max(choice.rank for choice in found)
    return list(rng.choice([choice for choice in found if choice.rank == best]).edits)


def reached(body: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    """Statements that every passing run of a test executes."""
    for statement in body:
        yield statement
        if isinstance(statement, ast.With | ast.AsyncWith):
            if not any(CATCHES.search(ast.unparse(item.context_expr)) for item in statement.items):
                yield from reached(statement.body)
        elif isinstance(statement, ast.For) and isinstance(statement.iter, ast.List | ast.Tuple):
            jumps = any(isinstance(node, ast.Break | ast.Continue) for node in ast.walk(statement))
            if statement.iter.elts and not jumps:
                yield from reached(statement.body)


def _leaves_early(function: Function) -> bool:
    """True if it has a return or a yield of its own, so that its last line may not be reached."""
    nodes: list[ast.AST] = list(function.body)
    for node in nodes:
        if isinstance(node, ast.Return | ast.Yield | ast.YieldFrom):
            return True
        if not isinstance(node, Function | ast.Lambda | ast.ClassDef):
            nodes += ast.iter_child_nodes(node)
    return False


def _start(function: Function, source: Source) -> list[Edit]:
    """Fail before the first statement."""
    first = function.body[0]
    if not isinstance(first, COMPOUND):
        at = source.at(first.lineno, first.col_offset)
        return [Edit(at, at, f"{FAIL}; ")]
    line = min([first.lineno, *(each.lineno for each in _decorators(first))])
    at = source.at(line, first.col_offset)
    return [Edit(at, at, f"{FAIL}\n{_indent(first, source)}")]


def _end(function: Function, source: Source) -> list[Edit]:
    """Fail after the last statement."""
    last = function.body[-1]
    assert last.end_lineno is not None and last.end_col_offset is not None
    at = source.at(last.end_lineno, last.end_col_offset)
    return [Edit(at, at, f"\n{_indent(last, source)}{FAIL}" if isinstance(last, COMPOUND) else f"; {FAIL}")]


def _decorators(statement: ast.stmt) -> list[ast.expr]:
    return statement.decorator_list if isinstance(statement, Function | ast.ClassDef) else []


def _indent(statement: ast.stmt, source: Source) -> str:
    begin = source.at(statement.lineno, 0)
    return source.text[begin : begin + statement.col_offset].decode()


def _replaced(source: Source, edits: list[Edit]) -> str:
    text = source.text
    for edit in sorted(edits, key=lambda edit: edit.start, reverse=True):
        text = text[: edit.start] + edit.text.encode() + text[edit.end :]
    return text.decode()


def _parsed(text: str) -> ast.Module | None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # such as invalid escapes in the project's strings
        try:
            return ast.parse(text)
        except (SyntaxError, ValueError, RecursionError):
            return None


# --- what a statement expects ---


def mutations_of(statement: ast.stmt, source: Source, rng: random.Random) -> Iterator[Mutation]:
    """The mutations of what one statement expects."""
    mutator = Mutator(source, rng)
    match statement:
        case ast.Assert(test=test):
            yield from mutator.expression(test)
            yield Mutation(NEGATION, (mutator.replacement(test, f"not ({mutator.text(test)})"),))
        case ast.Expr(value=ast.Call() as call):
            yield from mutator.call(call)
        case ast.With(items=items) | ast.AsyncWith(items=items):
            for item in items:
                if isinstance(item.context_expr, ast.Call):
                    yield from mutator.error(item.context_expr)


class Mutator:
    """Mutates expressions of one file. A value that met an expectation cannot meet the mutated one."""

    def __init__(self, source: Source, rng: random.Random) -> None:
        self.source, self.rng = source, rng

    def span(self, node: ast.expr) -> tuple[int, int]:
        assert node.end_lineno is not None and node.end_col_offset is not None
        at = self.source.at
        return at(node.lineno, node.col_offset), at(node.end_lineno, node.end_col_offset)

    def text(self, node: ast.expr) -> str:
        start, end = self.span(node)
        return self.source.text[start:end].decode()

    def replacement(self, node: ast.expr, text: str) -> Edit:
        return Edit(*self.span(node), text)

    def expression(self, expression: ast.expr) -> Iterator[Mutation]:
        """Mutations of an asserted condition, each of which makes a passing assertion fail."""
        match expression:
            case ast.BoolOp(op=ast.And(), values=values):
                for value in values:
                    yield from self.expression(value)
            case ast.Compare(left=left, ops=[op], comparators=[right]):
                if isinstance(op, ast.Eq):
                    yield from self.equal(left, right)
                elif isinstance(op, ast.In):
                    yield from self.member(left, right)
                sign = SIGNS[OPPOSITE[type(op)]]
                opposite = self.replacement(expression, f"({self.text(left)}) {sign} ({self.text(right)})")
                ordered = isinstance(op, ast.Lt | ast.LtE | ast.Gt | ast.GtE | ast.NotEq)
                yield Mutation(COMPARISON if ordered else NEGATION, (opposite,))

    def call(self, call: ast.Call) -> Iterator[Mutation]:
        """Mutations of a call of a method like assertEqual."""
        yield from self.error(call)
        name, arguments = name_of(call), call.args
        if name in EQUAL and len(arguments) >= 2 and not has_tolerance(name, call):
            yield from self.equal(arguments[0], arguments[1])
        if name == "assertIn" and len(arguments) >= 2:
            yield from self.member(arguments[0], arguments[1])
        if name == "assertTrue" and arguments:
            yield from self.expression(arguments[0])
        if name in OTHER_METHOD and isinstance(call.func, ast.Attribute):
            _, end = self.span(call.func)
            ordered = "Less" in name or "Greater" in name or name == "assertNotEqual"
            yield Mutation(COMPARISON if ordered else NEGATION, (Edit(end - len(name), end, OTHER_METHOD[name]),))

    def error(self, call: ast.Call) -> Iterator[Mutation]:
        """Mutations of an expected exception: another class."""
        if name_of(call) in RAISES and call.args:
            others = [error for error in ERRORS if error not in self.text(call.args[0])]
            yield Mutation(VALUE, (self.replacement(call.args[0], self.rng.choice(others)),))

    def equal(self, left: ast.expr, right: ast.expr) -> Iterator[Mutation]:
        """Another literal on one side; without a literal, a value of another shape."""
        if "ANY" in self.text(left) + self.text(right):  # mock.ANY equals everything on purpose
            return
        leaves = [leaf for side in (left, right) for leaf in literals(side)]
        for leaf in leaves:
            yield Mutation(VALUE, (self.replacement(leaf, self.similar_value(leaf)),))
        if not leaves:
            yield Mutation(COMPARISON, (self.replacement(right, f"[{self.text(right)}]"),))

    def member(self, left: ast.expr, right: ast.expr) -> Iterator[Mutation]:
        """A member that no collection has, or a collection of such members."""
        if isinstance(left, ast.Constant) and literals(left):
            yield Mutation(VALUE, (self.replacement(left, self.absent_value(left)),))
        elif isinstance(right, ast.List | ast.Tuple | ast.Set) and all(literals(part) for part in right.elts):
            leaves = [leaf for part in right.elts for leaf in literals(part)]
            if leaves and all(isinstance(leaf, ast.Constant) for leaf in leaves):
                yield Mutation(VALUE, tuple(self.replacement(leaf, self.absent_value(leaf)) for leaf in leaves))

    def similar_value(self, leaf: ast.expr) -> str:
        """Another plausible value of the same type."""
        match leaf:
            case ast.Constant(value=bool(value)):
                return repr(not value)
            case ast.Constant(value=int(value)):
                return repr(value + self.rng.randint(1, 9) + abs(value) // 4)
            case ast.Constant(value=float(value)):
                return repr(value + self.rng.randint(1, 9) / 2 + abs(value))
            case ast.Constant(value=str(value)):
                return repr(self.misspell(value))
            case ast.Constant(value=bytes(value)):
                return repr(self.misspell(value.decode("latin-1")).encode("latin-1"))
            case ast.Dict():
                return "{0: 0}"
            case ast.List():
                return "[0]"
            case ast.Tuple():
                return "(0,)"
        return "0"  # for None

    def absent_value(self, leaf: ast.expr) -> str:
        """A value of the same type that no collection contains."""
        assert isinstance(leaf, ast.Constant)
        if isinstance(leaf.value, str | bytes):
            word = "".join(self.rng.choices(string.ascii_lowercase, k=max(16, len(leaf.value))))
            return repr(word if isinstance(leaf.value, str) else word.encode())
        return repr(-self.rng.randint(10**8, 10**9) - 0.37)

    def misspell(self, text: str) -> str:
        """Replace one letter or digit by another, ignoring case."""
        place = self.rng.choice([n for n, sign in enumerate(text) if is_alphanumeric(sign)])
        signs = string.digits if text[place].isdigit() else string.ascii_lowercase
        other = self.rng.choice([sign for sign in signs if sign != text[place].lower()])
        return text[:place] + (other.upper() if text[place].isupper() else other) + text[place + 1 :]


def literals(node: ast.expr) -> Sequence[ast.expr]:
    """The literals in an expression that can be replaced."""
    match node:
        case ast.Constant(value=value):
            return [node] if is_alterable(value) else []
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return literals(operand)
        case ast.List(elts=parts) | ast.Tuple(elts=parts) | ast.Set(elts=parts) | ast.Dict(values=parts):
            return [leaf for part in parts for leaf in literals(part)] if parts else [node]
        case ast.Call(args=[value], keywords=[]) if name_of(node) == "approx":
            return literals(value)
    return []


def is_alterable(value: object) -> bool:
    match value:
        case int():
            return abs(value) < MAX_INT
        case float():
            return abs(value) < 1e300
        case str():
            return any(map(is_alphanumeric, value))
        case bytes():
            return any(is_alphanumeric(sign) for sign in value.decode("latin-1"))
    return value is None


def is_alphanumeric(character: str) -> bool:
    return character.isascii() and character.isalnum()


def name_of(call: ast.Call) -> str:
    """`assertEqual` of self.assertEqual(…), `raises` of pytest.raises(…)."""
    match call.func:
        case ast.Attribute(attr=name) | ast.Name(id=name):
            return name
    return ""


def has_tolerance(name: str, call: ast.Call) -> bool:
    """assertAlmostEqual with places or delta: a mutated value could still be close enough."""
    return name == "assertAlmostEqual" and (len(call.args) > 2 or bool(call.keywords))
