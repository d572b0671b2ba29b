"""The config as a JSON schema, so that an editor completes and checks a recipe."""

from __future__ import annotations

from dataclasses import MISSING, is_dataclass
from typing import Any, get_args, get_origin

from pydantic import TypeAdapter

from coterie.config.reader import limits_of, options_within
from coterie.config.registry import BUILTIN, Kind, Option, find, options_of
from coterie.config.settings import PARTS, Config, Role
from coterie.config.type_names import bare, is_union
from coterie.limits import FieldLimits
from coterie.types import Part, Weighted

OWN_FILE = {"type": "string", "pattern": r"\.py:\w+$", "description": "path/to/file.py:Name"}

WEIGHTED = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "weight": {"type": "number", "default": 1.0}},
    "required": ["name"],
}


def schema() -> dict[str, Any]:
    """What a config may say: every key with its type, limits and default; parts with their own options."""
    parts = {str(kind): {"oneOf": _spellings(kind)} for kind in PARTS}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Coterie",
        **_record(Config, FieldLimits()),
        "$defs": parts,
    }


def _record(cls: type, limits: FieldLimits) -> dict[str, Any]:
    return {**_object(options_within(cls, limits)), "description": (cls.__doc__ or cls.__name__).splitlines()[0]}


def _object(known: dict[str, Option]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {name: _property(name, option) for name, option in known.items()},
        "required": [name for name, option in known.items() if option.default is MISSING],
        "additionalProperties": False,
    }


def _property(name: str, option: Option) -> dict[str, Any]:
    if bare(option.hint) is Part:
        return {"$ref": f"#/$defs/{name}"}
    described = _value(option.hint)
    simple = isinstance(option.default, (str, int, float, bool)) or option.default is None
    return {**described, "default": option.default} if simple else described


def _value(hint: Any) -> dict[str, Any]:
    kind = bare(hint)
    if is_union(kind):
        return {"anyOf": [_value(member) for member in get_args(kind)]}
    if is_dataclass(kind):
        record = _record(kind, limits_of(hint))  # type: ignore[arg-type]
        return {"anyOf": [{"type": "string"}, record]} if kind is Role else record
    if get_origin(kind) is tuple and get_args(kind)[0] is Weighted:
        return {"type": "array", "items": {"anyOf": [{"type": "string"}, WEIGHTED]}}
    if get_origin(kind) is dict:
        return {"type": "object", "additionalProperties": _value(get_args(kind)[1])}
    return TypeAdapter(hint).json_schema()


def _spellings(kind: Kind) -> list[dict[str, Any]]:
    """A part's name alone, or its name with its options; a user's file may have any."""
    whole = []
    for name in BUILTIN[kind]:
        described = _object(options_of(find(kind, name)))
        described["properties"] = {"name": {"const": name}, **described["properties"]}
        described["required"] = ["name", *described["required"]]
        whole.append(described)
    own = {"type": "object", "properties": {"name": OWN_FILE}, "required": ["name"]}
    return [{"enum": list(BUILTIN[kind])}, OWN_FILE, *whole, own]
