"""Types and values in words, for messages and docs: `Count | None` is `a whole number ≥ 1 or null`."""

from __future__ import annotations

import collections.abc
from collections.abc import Mapping
from dataclasses import asdict, is_dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic.fields import FieldInfo

PLAIN = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "text",
    Path: "a path",
    NoneType: "null",
    dict: "a mapping",
    Mapping: "a mapping",
    list: "a list",
    tuple: "a list",
    collections.abc.Callable: "a function",
}
SIGNS = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}


def type_name(hint: Any) -> str:
    """A type in words, with its limits."""
    if get_origin(hint) is Annotated:
        return f"{type_name(bare(hint))} {' and '.join(_bounds(hint))}".rstrip()
    if get_origin(hint) is Literal:
        *others, last = map(str, get_args(hint))
        return f"{', '.join(others)} or {last}" if others else last
    if is_union(hint):
        return " or ".join(type_name(member) for member in get_args(hint))
    if is_dataclass(hint):
        return "a mapping"
    if hint is Any:
        return "a value of no declared type"
    kind = get_origin(hint) or hint
    if kind is tuple and get_args(hint)[-1] is not Ellipsis:
        return f"a list of {', '.join(type_name(member) for member in get_args(hint))}"
    return PLAIN[kind] if kind in PLAIN else str(hint)


def value_name(value: Any) -> str:
    """A value as it was written, so that `8` and `'8'` differ."""
    if isinstance(value, str):
        return f"the text {value!r}"
    if isinstance(value, list):
        return f"the list {value!r}" if len(repr(value)) < 60 else "a list"
    if isinstance(value, dict):
        return "a mapping"
    return "null" if value is None else repr(value).lower()


def choices(hint: Any) -> list[str]:
    """The words that a type allows, if it is a choice."""
    if get_origin(hint) is Literal:
        return [str(word) for word in get_args(hint)]
    return [word for member in get_args(hint) for word in choices(member)] if is_union(hint) else []


def is_union(hint: Any) -> bool:
    return get_origin(hint) in (Union, UnionType)


def takes_function(hint: Any) -> bool:
    """True for `Callable[…]` and `Callable[…] | None`."""
    kind = bare(hint)
    if is_union(kind):
        return any(takes_function(member) for member in get_args(kind) if member is not NoneType)
    return kind is collections.abc.Callable or get_origin(kind) is collections.abc.Callable


def bare(hint: Any) -> Any:
    """A type without its limits."""
    return get_args(hint)[0] if get_origin(hint) is Annotated else hint


def _bounds(hint: Any) -> list[str]:
    limits = [limit for n in hint.__metadata__ for limit in (n.metadata if isinstance(n, FieldInfo) else [n])]
    pairs = [pair for limit in limits if is_dataclass(limit) for pair in asdict(limit).items()]  # type: ignore[arg-type]
    return [f"{SIGNS[sign]} {bound}" for sign, bound in pairs if sign in SIGNS]
