"""The config as a JSON schema, so that an editor completes and checks a recipe.

The description of a key is the comment beside its field, or above it, in the source.
"""

from __future__ import annotations

import ast
import inspect
import tokenize
from collections.abc import Mapping
from dataclasses import MISSING, is_dataclass
from functools import cache
from io import StringIO
from textwrap import dedent
from typing import Any, get_args, get_origin

from pydantic import TypeAdapter

from coterie.config.reader import limits_of, options_within
from coterie.config.registry import BUILTIN, Kind, Option, Options, find, options_of
from coterie.config.settings import PARTS, Config, Role
from coterie.config.type_names import bare, is_union, takes_function
from coterie.limits import FieldLimits
from coterie.types import Part, Weighted

OWN_FILE = {"type": "string", "pattern": r"\.py:\w+$", "description": "path/to/file.py:Name"}

WEIGHT = {"type": "number", "default": 1.0}
WEIGHTED = {"type": "object", "properties": {"name": {"type": "string"}, "weight": WEIGHT}, "required": ["name"]}


def schema() -> dict[str, Any]:
    """What a config may say: every key with its type, limits and default; parts with their own options."""
    parts = {str(kind): {"oneOf": _spellings(kind)} for kind in PARTS}
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "Coterie"}
    return {**head, **_record(Config, FieldLimits()), "$defs": parts}


def _record(cls: type, limits: FieldLimits) -> dict[str, Any]:
    return {**_object(options_within(cls, limits), descriptions(cls)), "description": summary(cls)}


def _object(known: Options, about: Mapping[str, str]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {name: _property(name, option, about) for name, option in known.items()},
        "required": [name for name, option in known.items() if option.default is MISSING],
        "additionalProperties": False,
    }


def _property(name: str, option: Option, about: Mapping[str, str]) -> dict[str, Any]:
    described = {"$ref": f"#/$defs/{name}"} if bare(option.hint) is Part else _value(option.hint)
    if name in about:
        described |= {"description": about[name]}
    simple = isinstance(option.default, (str, int, float, bool)) or option.default is None
    return {**described, "default": option.default} if simple else described


def _value(hint: Any) -> dict[str, Any]:
    kind = bare(hint)
    if is_union(kind):
        return {"anyOf": [_value(member) for member in get_args(kind)]}
    if takes_function(kind):
        return dict(OWN_FILE)
    if is_dataclass(kind):
        record = _record(kind, limits_of(hint))  # type: ignore[arg-type]
        return {"anyOf": [{"type": "string"}, record]} if kind is Role else record
    if get_origin(kind) is tuple and get_args(kind)[0] is Weighted:
        return {"type": "array", "items": {"anyOf": [{"type": "string"}, WEIGHTED]}}
    if get_origin(kind) is dict:
        return {"type": "object", "additionalProperties": _value(get_args(kind)[1])}
    return TypeAdapter(hint).json_schema()


def _spellings(kind: Kind) -> list[dict[str, Any]]:
    """A part's name alone, or its name with its options; a part from a user's file may have any options."""
    whole = []
    for name in BUILTIN[kind]:
        part = find(kind, name)
        described = {**_object(options_of(part), descriptions(part)), "description": summary(part)}
        described["properties"] = {"name": {"const": name}, **described["properties"]}
        described["required"] = ["name", *described["required"]]
        whole.append(described)
    own = {"type": "object", "properties": {"name": OWN_FILE}, "required": ["name"]}
    return [{"enum": list(BUILTIN[kind])}, OWN_FILE, *whole, own]


def summary(part: Any) -> str:
    """The first sentence of a docstring."""
    text = inspect.getdoc(part) or part.__name__
    return " ".join(text.split("\n\n")[0].split()).split(". ")[0].rstrip(".") + "."


@cache
def descriptions(part: Any) -> Mapping[str, str]:
    """What each option of a part is: the comment at the end of its line, or else the comment lines above it.

    An option without a comment in a subclass, which only changes its default, keeps the description of the base class.
    """
    sources = reversed(part.__mro__[:-1]) if inspect.isclass(part) else [part]
    return {name: text for source in sources for name, text in _commented(source).items()}


def _commented(source: Any) -> dict[str, str]:
    text = dedent(inspect.getsource(source))
    definition = ast.parse(text).body[0]
    comments = {
        token.start[0]: (token.string.lstrip("# "), token.line.lstrip().startswith("#"))
        for token in tokenize.generate_tokens(StringIO(text).readline)
        if token.type == tokenize.COMMENT and not token.string.startswith(("# type:", "# noqa"))
    }
    found: dict[str, str] = {}
    for name, first, last in _options_in(definition):
        above = first
        while above - 1 in comments and comments[above - 1][1]:
            above -= 1
        lines = [last] if last in comments else range(above, first)
        if sentence := " ".join(comments[line][0] for line in lines):
            found[name] = sentence[0].upper() + sentence[1:].rstrip(".") + "."
    return found


def _options_in(definition: ast.AST) -> list[tuple[str, int, int]]:
    """Name, first and last line of the fields of a class, or of the keyword-only parameters of a function."""
    if isinstance(definition, ast.ClassDef):
        fields = [node for node in definition.body if isinstance(node, ast.AnnAssign)]
        return [(f.target.id, f.lineno, f.end_lineno or 0) for f in fields if isinstance(f.target, ast.Name)]
    assert isinstance(definition, ast.FunctionDef | ast.AsyncFunctionDef)
    arguments = zip(definition.args.kwonlyargs, definition.args.kw_defaults, strict=True)
    return [(arg.arg, arg.lineno, (default or arg).end_lineno or 0) for arg, default in arguments]
