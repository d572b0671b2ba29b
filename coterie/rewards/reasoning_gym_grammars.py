"""Allow-list grammars: which answers reasoning-gym's scorers may evaluate, per dataset.

Some scorers pass the answer to `eval` or to sympy's `parse_expr`, which calls `eval`. Others give 1 to wrong answers.
An answer outside its grammar is wrong and is not passed to the scorer.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Mapping
from fractions import Fraction
from typing import Any

from coterie.rewards.answer_extraction import boxed, tagged

Entry = Mapping[str, Any]  # of reasoning-gym: question, answer, metadata
Grammar = Callable[[str, Entry], bool]

LONGEST = 1000  # characters, or eight times the reference where that is more
DEEPEST = 20  # brackets
OPERATIONS = 300  # in an expression: each one in a sum deepens the syntax tree
DEGREE = 100  # of an expression as a polynomial: limits the growth of nested powers
EXPRESSION = re.compile(r"[0-9A-Za-z .,+*/()-]*+")
LIST = re.compile(r"[0-9A-Za-z_,'\"\s\[\]()-]*+", re.ASCII)
WORD = re.compile(r"[\w.]++")
WHOLE, DECIMAL = re.compile(r"[0-9]{1,30}"), re.compile(r"[0-9]{1,30}\.[0-9]{1,30}")
FUNCTIONS = frozenset(
    "sin cos tan sec csc cot asin acos atan sinh cosh tanh asinh acosh atanh exp log ln sqrt Abs".split()  # noqa: SIM905
)
SIGN = re.compile(r"[-+*/]")
OPERATORS = (ast.Add, ast.Sub, ast.Mult, ast.Div)
COMPLEX = re.compile(r"[-+().0-9ij\s]*+", re.IGNORECASE)
NUMBERS = re.compile(r"\s*+(?:-?[0-9]{1,30}(?:\.[0-9]{1,30})?\s*+(?:,\s*+|$))*+")
PROBABILITY = re.compile(r"[0-9]{1,30}(?:/0*+[1-9][0-9]{0,29}|(?:\.[0-9]{1,30})?(?:e-[0-9]{1,2})?)")
NEAR = 1e-4  # tolerance of coin_flip for a probability
MOVES = re.compile(r"(?:[0-9]?[LRDUBFXYZMES]w?'?[0-9]?(?:\s++|$))*+")


def answer_in(text: str) -> str:
    """The content of `\\boxed{}` or `<answer>`, else the whole text."""
    bare = text.strip()
    return boxed(bare) or tagged(bare) or bare


def is_in_grammar(dataset: str, text: str, entry: Entry) -> bool:
    """True if an answer is safe to pass to the dataset's scorer, which may `eval` it. The reference always is."""
    if text == entry["answer"]:
        return True
    if len(text) > max(LONGEST, 8 * len(str(entry["answer"]))):
        return False
    grammar = EVALUATING.get(dataset) or LOOSE.get(dataset)
    return grammar is None or grammar(text, entry)


def is_arithmetic(text: str, entry: Entry) -> bool:
    """Whole numbers, + - * / and brackets."""
    tree = _parsed(text, EXPRESSION)
    return tree is not None and all(WHOLE.fullmatch(word) for word in WORD.findall(text)) and _is_allowed(tree)


def uses_the_numbers(text: str, entry: Entry) -> bool:
    """Arithmetic with the numbers of the task, each once; puzzle24 takes any four."""
    used = sorted(int(word) for word in WORD.findall(text)) if is_arithmetic(text, entry) else []
    return used == sorted(entry["metadata"]["numbers"])


def is_polynomial(text: str, entry: Entry) -> bool:
    """Arithmetic with powers, in the variables of the task."""
    return _is_formula(text, frozenset(entry["metadata"]["variables"]), frozenset())


def is_antiderivative(text: str, entry: Entry) -> bool:
    """A formula in the variable of the task, E, pi and the constant C. No Integral: it would restate the task."""
    return _is_formula(text, frozenset({entry["metadata"]["variable"], "C", "E", "pi"}), FUNCTIONS)


def is_board(text: str, entry: Entry) -> bool:
    """A board of the valid ones as text, or a list of lists of "Q" and "_"."""
    return text in entry["metadata"]["valid_answers"] or _is_list(text, 2, lambda item: item in ("Q", "_"))


def is_matrix(text: str, entry: Entry) -> bool:
    return _is_list(text, 2, _is_integer)


def is_list_of_numbers(text: str, entry: Entry) -> bool:
    return _is_list(text, 1, _is_integer)


def is_list_of_letters(text: str, entry: Entry) -> bool:
    return _is_list(text, 1, lambda item: isinstance(item, str) and len(item) == 1 and item.isalpha())


def is_near(text: str, entry: Entry) -> bool:
    """A probability as a fraction or a decimal; the scorer of coin_flip accepts any prefix of the right one."""
    bare = text.replace(",", "")
    return PROBABILITY.fullmatch(bare) is not None and abs(Fraction(bare) - Fraction(entry["answer"])) <= NEAR


# Datasets whose scorers call `eval` on the answer, and therefore run in the sandbox.
EVALUATING: dict[str, Grammar] = {
    "binary_matrix": is_matrix,
    "countdown": is_arithmetic,
    "intermediate_integration": is_antiderivative,
    "n_queens": is_board,
    "polynomial_multiplication": is_polynomial,
    "puzzle24": uses_the_numbers,
    "simple_integration": is_antiderivative,
    "spiral_matrix": is_list_of_numbers,
    "string_insertion": is_list_of_letters,
}
# Datasets whose scorers do not call `eval`, but accept some wrong answers or never return on some.
LOOSE: dict[str, Grammar] = {
    "coin_flip": is_near,
    "complex_arithmetic": lambda text, entry: COMPLEX.fullmatch(text) is not None,  # its scorer accepts "nan"
    "game_of_life_halting": lambda text, entry: text.casefold() == entry["answer"].casefold(),  # it accepts any text
    "polynomial_equations": lambda text, entry: NUMBERS.fullmatch(text) is not None,  # its scorer ignores words
    "rubiks_cube": lambda text, entry: MOVES.fullmatch(text) is not None,  # R999999999 makes that many turns
}


def _is_formula(text: str, names: frozenset[str], functions: frozenset[str]) -> bool:
    tree = _parsed(text, EXPRESSION)
    if tree is None or not all(_is_word(word, names | functions) for word in WORD.findall(text)):
        return False
    called = {node.func.id for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}
    return called <= functions and _is_allowed(tree, names | functions) and (_degree(tree) or DEGREE + 1) <= DEGREE


def _is_word(word: str, names: frozenset[str]) -> bool:
    """True for a plain number or a known name, but not for 1_0, 0x1f, 1e9 or 2j."""
    return word in names or WHOLE.fullmatch(word) is not None or DECIMAL.fullmatch(word) is not None


def _parsed(text: str, characters: re.Pattern[str]) -> ast.expr | None:
    """Parse a text as an expression, without evaluating it. The bounds keep Python's parser from overflowing."""
    if not characters.fullmatch(text) or _depth(text) > DEEPEST or len(SIGN.findall(text)) > OPERATIONS:
        return None
    try:
        return ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _depth(text: str) -> int:
    """The nesting depth; a run of signs nests as brackets do: `- - -1`."""
    deepest = signs = brackets = 0
    for character in text:
        if character in "([":
            brackets += 1
        elif character in ")]":
            brackets -= 1
        if character in "+-*":
            signs += 1
        elif character != " ":
            signs = 0
        deepest = max(deepest, brackets + signs)
    return deepest


def _is_allowed(tree: ast.expr, names: frozenset[str] = frozenset()) -> bool:
    """True if an expression has only numbers, + - * / and known names; with names, also powers."""
    operators = (*OPERATORS, ast.Pow) if names else OPERATORS
    for node in ast.walk(tree):
        match node:
            case ast.Constant(value=value) if type(value) in (int, float):
                pass
            case ast.Call(func=ast.Name(), args=[_], keywords=[]):
                pass
            case ast.Name(id=name) if name in names:
                pass
            case ast.BinOp() | ast.UnaryOp() | ast.UAdd() | ast.USub() | ast.Load():
                pass
            case ast.operator() if isinstance(node, operators):
                pass
            case _:
                return False
    return True


def _degree(node: ast.expr) -> float | None:
    """The degree of an expression as a polynomial, which bounds its growth; None if an exponent is no number."""
    match node:
        case ast.BinOp(left=ast.Name(id="E"), op=ast.Pow(), right=right):
            return _degree(right)
        case ast.BinOp(left=left, op=ast.Pow(), right=right):
            base, power = _degree(left), _number(right)
            return None if base is None or power is None else max(base * abs(power), base)
        case ast.BinOp(left=left, op=op, right=right):
            sides = [_degree(left), _degree(right)]
            known = [side for side in sides if side is not None]
            if len(known) < len(sides):
                return None
            return sum(known) if isinstance(op, ast.Mult | ast.Div) else max(known)
        case ast.UnaryOp(operand=inner) | ast.Call(args=[inner]):
            return _degree(inner)
        case _:
            return 1


def _number(node: ast.expr) -> float | None:
    """The value of `3`, `-3` or `3/2`."""
    match node:
        case ast.Constant(value=int() | float() as value):
            return float(value)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            positive = _number(operand)
            return None if positive is None else -positive
        case ast.BinOp(left=left, op=ast.Div(), right=right):
            above, below = _number(left), _number(right)
            return None if above is None or not below else above / below
        case _:
            return None


def _is_list(text: str, depth: int, is_item: Callable[[Any], bool]) -> bool:
    tree = _parsed(text, LIST)
    return tree is not None and all(is_item(item) for item in _items(tree, depth))


def _items(node: ast.expr, depth: int) -> Iterator[Any]:
    """The constants of a list nested `depth` levels deep; None for anything else."""
    match node:
        case ast.List(elts=elements) | ast.Tuple(elts=elements) if depth:
            for element in elements:
                yield from _items(element, depth - 1)
        case ast.Constant(value=value) if not depth:
            yield value
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() as value)) if not depth:
            yield -value
        case _:
            yield None


def _is_integer(item: Any) -> bool:
    return type(item) is int
