"""What a program under test and its judge say to each other: values, and numbers for what has no value.

Each is a process of its own (see `code_inside`). A message is a line of JSON, so that reading one can do nothing but
make plain data: lists, tuples, sets, numbers, text, and objects of classes that stood there before the program.
Anything else stays where it is and is `Far` on the other side.
"""

from __future__ import annotations

import builtins
from _json import encode_basestring_ascii as quoted  # json itself takes half as long to import as Python to start
from _json import make_scanner

from coterie.rewards.code.remote_object import Far

TYPE_CHECKING = False  # nor is there time for typing
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

KNOWN = {"decimal.Decimal": str, "fractions.Fraction": str, "collections.deque": list}  # made again of this


class Wire:
    """Writes messages and reads them, on one side.

    `classes`: of whose objects both sides know how they are made. `lends`: what may be referred to by number.
    """

    def __init__(self, classes: dict[str, type], lends: Callable[[object], bool], ask: Callable[..., Any]) -> None:
        self.classes, self.lends, self.ask = classes, lends, ask
        self.kept: list[object] = []
        self.objects: list[object] = []  # of the message at hand
        self.places: dict[int, int] = {}  # of these objects, by their identity
        self.scan = _scanner(self.made)

    def written(self, message: object) -> str:
        self.objects, self.places = [], {}
        body, attributes, done = self.encoded(message), [], 0
        while done < len(self.objects):  # one after another, as a linked list is longer than a stack is deep
            attributes.append(self.encoded(vars(self.objects[done])))
            done += 1
        names = ",".join(quoted(type(value).__name__) for value in self.objects)
        return f"[{names}]\t[{body},[{','.join(attributes)}]]\n"

    def read(self, line: str) -> Any:
        """A message. Raises ValueError, TypeError, KeyError, IndexError or RecursionError where it is none."""
        names, _, body = line.partition("\t")
        self.objects = []
        self.objects = [object.__new__(self.classes[name]) for name in self._value(names)]
        message, attributes = self._value(body)
        for value, parts in zip(self.objects, attributes, strict=True):
            vars(value).update(parts)
        return message

    def json(self, text: str) -> Any:
        """A value of ordinary JSON."""
        return _scanner(None)(text, 0)[0]

    def _value(self, text: str) -> Any:
        try:
            return self.scan(text, 0)[0]
        except StopIteration:
            raise ValueError("a message ends too early") from None

    def encoded(self, value: Any) -> str:
        if (text := scalar(value)) is not None:
            return text
        if isinstance(value, list) and not own(type(value)):
            return f"[{','.join(map(self.encoded, value))}]"
        tag, parts = self._referred(value) if own(type(value)) else self._tagged(value)
        return f'{{"{tag}":{self.encoded(parts)}}}'

    def _tagged(self, value: Any) -> tuple[str, Any]:
        kind = type(value)
        for tag, known in (("tuple", tuple), ("set", set), ("frozenset", frozenset)):
            if isinstance(value, known):
                return tag, list(value)
        if isinstance(value, dict):
            return "dict", [[key, part] for key, part in value.items()]
        if isinstance(value, (bytes, bytearray)):
            return "bytes", bytes(value).decode("latin-1")
        if isinstance(value, complex):
            return "complex", [value.real, value.imag]
        if kind is Far:
            return "yours", vars(value)["_number"]
        if isinstance(value, type) and value in vars(builtins).values():
            return "type", value.__name__
        name = f"{kind.__module__}.{kind.__qualname__}"
        if name in KNOWN:
            return "known", [name, KNOWN[name](value)]
        if kind.__module__ == "numpy":
            return "list", value.tolist()
        return self._referred(value)

    def _referred(self, value: object) -> tuple[str, Any]:
        if self.classes.get(type(value).__name__) is type(value):
            place = self.places.setdefault(id(value), len(self.objects))
            if place == len(self.objects):
                self.objects.append(value)
            return "object", place
        if not self.lends(value):
            raise TypeError(f"a test cannot hand a program this {type(value).__name__}")
        self.kept.append(value)
        return "mine", len(self.kept) - 1

    def made(self, tagged: dict[str, Any]) -> Any:
        """What a tag and its parts stand for."""
        ((tag, parts),) = tagged.items()
        match tag:
            case "tuple" | "set" | "frozenset" | "dict" | "list":
                return getattr(builtins, tag)(parts)
            case "bytes":
                return parts.encode("latin-1")
            case "complex":
                return complex(*parts)
            case "yours":
                return self.kept[parts]
            case "mine":
                return Far(self.ask, parts)
            case "object":
                return self.objects[parts]
            case "type":
                return _builtin_type(parts)
            case "known":
                return _known(*parts)
        raise ValueError(f"no tag {tag!r}")


def own(kind: type) -> bool:
    """Whether a class is of the program, or of what stands before it."""
    return kind.__module__ == "program"


def plain(value: Any) -> Any:
    """What is left of an object of a class of one's own if only Python's part of it counts."""
    kinds = (kind for kind in (list, tuple, dict, set, frozenset) if isinstance(value, kind))
    return next((kind(value) for kind in kinds), value)


class _Reading:
    """How the scanner of json is to read."""

    strict, object_pairs_hook = True, None
    parse_float, parse_int = float, int
    parse_constant = float

    def __init__(self, made: Callable[[dict[str, Any]], Any] | None) -> None:
        self.object_hook = made


def _scanner(made: Callable[[dict[str, Any]], Any] | None) -> Callable[[str, int], tuple[Any, int]]:
    reading: Any = _Reading(made)
    return make_scanner(reading)


def _builtin_type(name: str) -> type:
    found = vars(builtins)[name]
    if not isinstance(found, type):
        raise ValueError(f"{name} is no type")
    return found


def _known(name: str, parts: Any) -> Any:
    if type(parts) is not KNOWN[name]:
        raise ValueError(f"{name} of {type(parts).__name__}")
    module, _, kind = name.rpartition(".")
    return getattr(__import__(module), kind)(parts)


def scalar(value: Any) -> str | None:
    """A text, number or the like as JSON; None for what has parts."""
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    if isinstance(value, str):
        return quoted(value)
    if isinstance(value, int):
        return int.__repr__(value)
    if isinstance(value, float):
        return float.__repr__(value).replace("inf", "Infinity").replace("nan", "NaN")
    return None
