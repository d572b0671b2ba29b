"""Serialize values between the judge and the program under test, as lines of JSON.

Decoding can only make plain data: lists, tuples, sets, numbers, text, and objects of classes that were defined before
the program ran. Any other object stays in its process; the other side gets a `RemoteObject`. Pickle would let the
program execute code in the judge.
"""

from __future__ import annotations

import builtins
from _json import encode_basestring_ascii as quoted  # importing json takes half as long as starting Python
from _json import make_scanner

from coterie.rewards.code.remote_object import RemoteObject

TYPE_CHECKING = False  # importing typing would slow down the start
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

# By class: the builtin type that its instances are sent as, and made from again.
REBUILT = {"decimal.Decimal": str, "fractions.Fraction": str, "collections.deque": list}


class Codec:
    """Encodes and decodes messages on one side.

    `classes`: sent by value, because both sides have them. `may_export`: whether an object may be sent by reference.
    """

    def __init__(self, classes: dict[str, type], may_export: Callable[[object], bool], ask: Callable[..., Any]) -> None:
        self.classes, self.may_export, self.ask = classes, may_export, ask
        self.exported: list[object] = []  # sent by reference, which is the index here
        self.objects: list[object] = []  # of `classes`, in the current message
        self.indices: dict[int, int] = {}  # in `objects`, by id()
        self.scan = _scanner(self.decode_tagged)

    def encode_message(self, message: object) -> str:
        self.objects, self.indices = [], {}
        body, attributes, done = self.encode(message), [], 0
        while done < len(self.objects):  # a loop: recursion would overflow the stack on a long linked list
            attributes.append(self.encode(vars(self.objects[done])))
            done += 1
        names = ",".join(quoted(type(value).__name__) for value in self.objects)
        return f"[{names}]\t[{body},[{','.join(attributes)}]]\n"

    def decode_message(self, line: str) -> Any:
        """Raises ValueError, TypeError, KeyError, IndexError or RecursionError if the line is malformed."""
        names, _, body = line.partition("\t")
        self.objects = []
        self.objects = [object.__new__(self.classes[name]) for name in self._scan(names)]
        message, attributes = self._scan(body)
        for value, parts in zip(self.objects, attributes, strict=True):
            vars(value).update(parts)
        return message

    def decode_json(self, text: str) -> Any:
        """Decode ordinary JSON, without tags."""
        return _scanner(None)(text, 0)[0]

    def _scan(self, text: str) -> Any:
        try:
            return self.scan(text, 0)[0]
        except StopIteration:
            raise ValueError("a message ends too early") from None

    def encode(self, value: Any) -> str:
        if (text := encode_scalar(value)) is not None:
            return text
        if isinstance(value, list) and not is_program_class(type(value)):
            return f"[{','.join(map(self.encode, value))}]"
        tag, parts = self._by_reference(value) if is_program_class(type(value)) else self._tagged(value)
        return f'{{"{tag}":{self.encode(parts)}}}'

    def _tagged(self, value: Any) -> tuple[str, Any]:
        kind = type(value)
        for tag, builtin in (("tuple", tuple), ("set", set), ("frozenset", frozenset)):
            if isinstance(value, builtin):
                return tag, list(value)
        if isinstance(value, dict):
            return "dict", [[key, part] for key, part in value.items()]
        if isinstance(value, (bytes, bytearray)):
            return "bytes", bytes(value).decode("latin-1")
        if isinstance(value, complex):
            return "complex", [value.real, value.imag]
        if kind is RemoteObject:
            return "receivers", vars(value)["_number"]  # goes back to the side that exported it
        if isinstance(value, type) and value in vars(builtins).values():
            return "type", value.__name__
        name = f"{kind.__module__}.{kind.__qualname__}"
        if name in REBUILT:
            return "rebuilt", [name, REBUILT[name](value)]
        if kind.__module__ == "numpy":
            return "list", value.tolist()
        return self._by_reference(value)

    def _by_reference(self, value: object) -> tuple[str, Any]:
        if self.classes.get(type(value).__name__) is type(value):
            index = self.indices.setdefault(id(value), len(self.objects))
            if index == len(self.objects):
                self.objects.append(value)
            return "object", index
        if not self.may_export(value):
            raise TypeError(f"a test cannot pass a {type(value).__name__} like this to the program")
        self.exported.append(value)
        return "senders", len(self.exported) - 1

    def decode_tagged(self, tagged: dict[str, Any]) -> Any:
        ((tag, parts),) = tagged.items()
        match tag:
            case "tuple" | "set" | "frozenset" | "dict" | "list":
                return getattr(builtins, tag)(parts)
            case "bytes":
                return parts.encode("latin-1")
            case "complex":
                return complex(*parts)
            case "receivers":
                return self.exported[parts]
            case "senders":
                return RemoteObject(self.ask, parts)
            case "object":
                return self.objects[parts]
            case "type":
                return _builtin_type(parts)
            case "rebuilt":
                return _rebuild(*parts)
        raise ValueError(f"no tag {tag!r}")


def is_program_class(kind: type) -> bool:
    """True for classes of the program, and of the prelude before it."""
    return kind.__module__ == "program"


def as_builtin(value: Any) -> Any:
    """An instance of a subclass of list, tuple, dict or set as that builtin type; any other value itself."""
    kinds = (kind for kind in (list, tuple, dict, set, frozenset) if isinstance(value, kind))
    return next((kind(value) for kind in kinds), value)


def encode_scalar(value: Any) -> str | None:
    """None, a bool, text or a number as JSON; None for anything else."""
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    if isinstance(value, str):
        return quoted(value)
    if isinstance(value, int):
        return int.__repr__(value)
    if isinstance(value, float):
        return float.__repr__(value).replace("inf", "Infinity").replace("nan", "NaN")
    return None


class _ScannerOptions:
    """Options of the C scanner behind the json module."""

    strict, object_pairs_hook = True, None
    parse_float, parse_int = float, int
    parse_constant = float

    def __init__(self, object_hook: Callable[[dict[str, Any]], Any] | None) -> None:
        self.object_hook = object_hook


def _scanner(object_hook: Callable[[dict[str, Any]], Any] | None) -> Callable[[str, int], tuple[Any, int]]:
    options: Any = _ScannerOptions(object_hook)
    return make_scanner(options)


def _builtin_type(name: str) -> type:
    found = vars(builtins)[name]
    if not isinstance(found, type):
        raise ValueError(f"{name} is no type")
    return found


def _rebuild(name: str, parts: Any) -> Any:
    if type(parts) is not REBUILT[name]:
        raise ValueError(f"{name} of {type(parts).__name__}")
    module, _, kind = name.rpartition(".")
    return getattr(__import__(module), kind)(parts)
