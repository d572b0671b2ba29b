"""What a statement of a test expects, and how to make it expect something else.

Each alteration is such that a value which met the expectation cannot meet the altered one, if it equals what it should
and nothing more.
"""

from __future__ import annotations

import ast
import random
import string
from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

EQUAL = {
    f"assert{kind}Equal" for kind in ("", "List", "Tuple", "Set", "Dict", "Sequence", "MultiLine", "Count", "Almost")
}
RAISES = ("raises", "assertRaises", "assertRaisesRegex")
ERRORS = ("BufferError", "FloatingPointError", "UnicodeTranslateError")  # that hardly any code raises
OPPOSITES = [
    *((ast.Eq, ast.NotEq), (ast.Lt, ast.GtE), (ast.Gt, ast.LtE), (ast.Is, ast.IsNot), (ast.In, ast.NotIn)),
]
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
WHOLE_NUMBERS = 1 << 63  # larger ones may be too long to write down
# How telling an alteration is: another value · an opposite comparison, or a value of another shape · the negation
VALUE, COMPARISON, NEGATION = 3, 2, 1


class Edit(NamedTuple):
    """Text in the place of the bytes from start to end."""

    start: int
    end: int
    text: str


class Choice(NamedTuple):
    """One way to alter a statement."""

    rank: int
    edits: tuple[Edit, ...]


class Positions(Protocol):
    """A file's text in bytes, and where its lines begin."""

    @property
    def text(self) -> bytes: ...
    def at(self, line: int, column: int) -> int: ...


def of_statement(statement: ast.stmt, source: Positions, rng: random.Random) -> Iterator[Choice]:
    """The alterations of what one statement itself expects."""
    writer = Writer(source, rng)
    match statement:
        case ast.Assert(test=test):
            yield from writer.expression(test)
            yield Choice(NEGATION, (writer.put(test, f"not ({writer.words(test)})"),))
        case ast.Expr(value=ast.Call() as call):
            yield from writer.call(call)
        case ast.With(items=items) | ast.AsyncWith(items=items):
            for item in items:
                if isinstance(item.context_expr, ast.Call):
                    yield from writer.error(item.context_expr)


class Writer:
    """Writes alterations of expressions in one file."""

    def __init__(self, source: Positions, rng: random.Random) -> None:
        self.source, self.rng = source, rng

    def span(self, node: ast.expr) -> tuple[int, int]:
        assert node.end_lineno is not None and node.end_col_offset is not None
        at = self.source.at
        return at(node.lineno, node.col_offset), at(node.end_lineno, node.end_col_offset)

    def words(self, node: ast.expr) -> str:
        start, end = self.span(node)
        return self.source.text[start:end].decode()

    def put(self, node: ast.expr, text: str) -> Edit:
        return Edit(*self.span(node), text)

    def expression(self, expression: ast.expr) -> Iterator[Choice]:
        """Of an expression that has to be true."""
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
                opposite = self.put(expression, f"({self.words(left)}) {sign} ({self.words(right)})")
                told = isinstance(op, ast.Lt | ast.LtE | ast.Gt | ast.GtE | ast.NotEq)
                yield Choice(COMPARISON if told else NEGATION, (opposite,))

    def call(self, call: ast.Call) -> Iterator[Choice]:
        """Of a method like assertEqual."""
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
            yield Choice(COMPARISON if ordered else NEGATION, (Edit(end - len(name), end, OTHER_METHOD[name]),))

    def error(self, call: ast.Call) -> Iterator[Choice]:
        """Of what has to raise: an error of another class."""
        if name_of(call) in RAISES and call.args:
            others = [error for error in ERRORS if error not in self.words(call.args[0])]
            yield Choice(VALUE, (self.put(call.args[0], self.rng.choice(others)),))

    def equal(self, left: ast.expr, right: ast.expr) -> Iterator[Choice]:
        """Another value on one side; where no side is written out, one of another shape."""
        if "ANY" in self.words(left) + self.words(right):  # a mock's, which equals everything on purpose
            return
        leaves = [leaf for side in (left, right) for leaf in literals(side)]
        for leaf in leaves:
            yield Choice(VALUE, (self.put(leaf, self.near(leaf)),))
        if not leaves:
            yield Choice(COMPARISON, (self.put(right, f"[{self.words(right)}]"),))

    def member(self, left: ast.expr, right: ast.expr) -> Iterator[Choice]:
        """A value that no collection has, or a collection of such values."""
        if isinstance(left, ast.Constant) and literals(left):
            yield Choice(VALUE, (self.put(left, self.stranger(left)),))
        elif isinstance(right, ast.List | ast.Tuple | ast.Set) and all(literals(part) for part in right.elts):
            leaves = [leaf for part in right.elts for leaf in literals(part)]
            if leaves and all(isinstance(leaf, ast.Constant) for leaf in leaves):
                yield Choice(VALUE, tuple(self.put(leaf, self.stranger(leaf)) for leaf in leaves))

    def near(self, leaf: ast.expr) -> str:
        """Another value that looks as likely."""
        match leaf:
            case ast.Constant(value=bool(value)):
                return repr(not value)
            case ast.Constant(value=int(value)):
                return repr(value + self.rng.randint(1, 9) + abs(value) // 4)
            case ast.Constant(value=float(value)):
                return repr(value + self.rng.randint(1, 9) / 2 + abs(value))
            case ast.Constant(value=str(value)):
                return repr(self.misspelt(value))
            case ast.Constant(value=bytes(value)):
                return repr(self.misspelt(value.decode("latin-1")).encode("latin-1"))
            case ast.Dict():
                return "{0: 0}"
            case ast.List():
                return "[0]"
            case ast.Tuple():
                return "(0,)"
        return "0"  # for None

    def stranger(self, leaf: ast.expr) -> str:
        assert isinstance(leaf, ast.Constant)
        if isinstance(leaf.value, str | bytes):
            word = "".join(self.rng.choices(string.ascii_lowercase, k=max(16, len(leaf.value))))
            return repr(word if isinstance(leaf.value, str) else word.encode())
        return repr(-self.rng.randint(10**8, 10**9) - 0.37)

    def misspelt(self, text: str) -> str:
        """One letter or digit is another one, and not only its other case."""
        place = self.rng.choice([n for n, sign in enumerate(text) if is_sign(sign)])
        signs = string.digits if text[place].isdigit() else string.ascii_lowercase
        other = self.rng.choice([sign for sign in signs if sign != text[place].lower()])
        return text[:place] + (other.upper() if text[place].isupper() else other) + text[place + 1 :]


def literals(node: ast.expr) -> Sequence[ast.expr]:
    """The values that are written out in an expression, and that another can be written for."""
    match node:
        case ast.Constant(value=value):
            return [node] if is_alterable(value) else []
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return literals(operand)
        case ast.List(elts=parts) | ast.Tuple(elts=parts) | ast.Set(elts=parts):
            return [leaf for part in parts for leaf in literals(part)] if parts else [node]
        case ast.Dict(values=parts):
            return [leaf for part in parts for leaf in literals(part)] if parts else [node]
        case ast.Call(args=[value], keywords=[]) if name_of(node) == "approx":
            return literals(value)
    return []


def is_alterable(value: object) -> bool:
    match value:
        case int():
            return abs(value) < WHOLE_NUMBERS
        case float():
            return abs(value) < 1e300
        case str():
            return any(map(is_sign, value))
        case bytes():
            return any(is_sign(sign) for sign in value.decode("latin-1"))
    return value is None


def is_sign(sign: str) -> bool:
    return sign.isascii() and sign.isalnum()


def name_of(call: ast.Call) -> str:
    """`assertEqual` of self.assertEqual(…), `raises` of pytest.raises(…)."""
    match call.func:
        case ast.Attribute(attr=name) | ast.Name(id=name):
            return name
    return ""


def has_tolerance(name: str, call: ast.Call) -> bool:
    """assertAlmostEqual with places or a delta; what is near by them is not known here."""
    return name == "assertAlmostEqual" and (len(call.args) > 2 or bool(call.keywords))
