"""Read plain data into dataclasses, strictly: every key known, every value of its type, all problems at once."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import MISSING, is_dataclass
from functools import partial
from pathlib import Path as File
from types import NoneType
from typing import Annotated, Any, NoReturn, get_args, get_origin

from pydantic import ConfigDict, TypeAdapter, ValidationError

from coterie.config import registry
from coterie.config.hints import hint_for
from coterie.config.interfaces import interface_problem, positional_option
from coterie.config.problems import ConfigError, Path, Problems, listed, undotted
from coterie.config.type_names import bare, choices, is_union, takes_function, type_name, value_name
from coterie.errors import did_you_mean
from coterie.limits import FieldLimits
from coterie.types import Part, Weighted

STRICT = ConfigDict(strict=True, allow_inf_nan=False)
EMPTY: Mapping[str, Any] = {}
INVALID = object()  # in place of a value whose problem has been reported


class Invalid(Exception):
    """Raised after a problem has been reported; reading goes on with the next key."""


class Reader:
    """Reads data as a type; every mismatch is reported with the key's path."""

    def __init__(self, problems: Problems, folder: File) -> None:
        self.problems = problems
        self.folder = folder  # where relative paths are looked up first

    def value(self, hint: Any, data: Any, path: Path) -> Any:
        """The data as this type, or INVALID."""
        try:
            return self._value(hint, data, path)
        except Invalid:
            return INVALID

    def _value(self, hint: Any, data: Any, path: Path) -> Any:
        kind = bare(hint)
        if isinstance(data, registry.FunctionName) or (takes_function(hint) and data is not None):
            return self.function(hint, data, path)
        if is_union(kind):
            return self.either(hint, data, path)
        if kind is Part:
            return self.part(data, path)
        if kind is Weighted:
            return self.weighted(data, path)
        if is_dataclass(kind):
            return self.record(kind, limits_of(hint), data, path)
        return self.group(hint, data, path) if _is_group(hint) else self.leaf(hint, data, path)

    def either(self, hint: Any, data: Any, path: Path) -> Any:
        """A union, usually `X | None`."""
        others = [member for member in get_args(bare(hint)) if member is not NoneType]
        if data is not None and len(others) == 1 and _is_group(others[0]):
            return self._value(others[0], data, path)
        return self.leaf(hint, data, path)

    def function(self, hint: Any, data: Any, path: Path) -> Any:
        if not takes_function(hint):
            declare = f"an option that takes one is declared `{path[-1]}: Callable`"
            self.invalid(path, f"got a function, expected {type_name(hint)}; {declare}")
        try:
            return registry.find_function(data, self.folder)
        except ConfigError as error:
            self.invalid(path, str(error))

    def leaf(self, hint: Any, data: Any, path: Path) -> Any:
        try:
            written = json.dumps(data)
        except TypeError:
            right = "a config holds text, numbers, lists and mappings"
            self.invalid(path, f"got a {type(data).__name__}, or a value with one inside; {right}")
        try:
            # Validated as JSON, because strict validation of Python input rejects a list for a tuple.
            read = TypeAdapter(hint, config=STRICT).validate_json(written, context={"folder": self.folder})
            return registry.find_path(read, self.folder) if isinstance(read, File) else read
        except ValidationError:
            near = did_you_mean(data, choices(hint)) if isinstance(data, str) else ""
            self.invalid(path, f"got {value_name(data)}, expected {type_name(hint)}{near}")

    def group(self, hint: Any, data: Any, path: Path) -> Any:
        """A list or a mapping, item by item, so that a problem names the item."""
        kind = list if get_origin(hint) is tuple else dict
        if not isinstance(data, kind):
            self.invalid(path, f"got {value_name(data)}, expected {type_name(hint)}")
        inner = get_args(hint)[0 if kind is list else 1]
        keyed = data.items() if isinstance(data, dict) else enumerate(data)
        items = _valid({key: self.value(inner, item, (*path, str(key))) for key, item in keyed})
        return items if kind is dict else tuple(items.values())

    def record(self, cls: Any, limits: FieldLimits, data: Any, path: Path) -> Any:
        if not isinstance(data, dict):
            own = ", ".join(registry.options_of(cls))
            self.invalid(path, f"got {value_name(data)}, expected a mapping; {cls.__name__} has {own}")
        options = self.fill(cls.__name__, options_within(cls, limits), data, path)
        return self.guard(cls, lambda: cls(**options), path, options)

    def part(self, data: Any, path: Path) -> Any:
        """`{name: chain, …options}`."""
        if not isinstance(data, dict) or "name" not in data:
            self.invalid(path, f"got {value_name(data)}, expected a name or a mapping with a name")
        name = self._value(str, data["name"], (*path, "name"))
        try:
            cls = registry.find(_kind(path), name, self.folder)
        except ConfigError as error:
            self.invalid((*path, "name"), str(error))
        return self.with_options(cls, registry.portable_name(name, self.folder), data, path)

    def weighted(self, data: Any, path: Path) -> Any:
        """A part with a `weight` beside its options, 1 by default."""
        own = {"name": data} if isinstance(data, str) else data
        weight = 1.0
        if isinstance(own, dict) and "weight" in own:
            weight = self.value(float, own["weight"], (*path, "weight"))
            own = {key: item for key, item in own.items() if key != "weight"}
        read = _valid({"part": self.value(Part, own, path), "weight": weight})
        return Weighted(read["part"].name, read["part"].options, read["part"].instance, read["weight"])

    def with_options(self, cls: Any, name: str, data: dict[str, Any], path: Path) -> Any:
        """The part made with the options in `data`; a user's own is checked for the interface of its kind."""
        known = self.guard(cls, lambda: registry.options_of(cls), path)
        if "name" in known:
            self.invalid(path, f"{cls.__name__} has an option `name`, but that key chooses the {path[-1]}; rename it")
        own = {key: item for key, item in data.items() if key != "name"}
        for key in [] if isinstance(cls, type) else [key for key in own if key not in known]:
            if (problem := positional_option(cls, key)) is not None:
                self.invalid((*path, key), problem)
        options = self.fill(cls.__name__, known, own, path)
        make = cls if isinstance(cls, type) else partial(partial, cls)
        instance = self.guard(cls, lambda: make(**options), path, options)
        if registry.names_file(name):
            problem = self.guard(cls, lambda: interface_problem(_kind(path), cls, instance), path)
            if problem is not None:
                self.invalid((*path, "name"), problem)
        return Part(name, options, instance)

    def fill(self, owner: str, known: registry.Options, data: dict[str, Any], path: Path) -> dict[str, Any]:
        """A value for every known option, from `data` or its default; unknown keys are only reported."""
        for key in [key for key in data if key not in known]:
            self.unknown(owner, list(known), data[key], (*path, key))
        for key in [name for name, option in known.items() if option.default is MISSING and name not in data]:
            self.problems.add((*path, key), f"missing; {owner} needs it")
        defaults = {name: option.default for name, option in known.items()}
        values = {key: self.value(known[key].hint, data[key], (*path, key)) for key in data if key in known}
        return _valid(defaults | values)

    def guard(self, part: Any, work: Callable[[], Any], path: Path, options: Mapping[str, Any] = EMPTY) -> Any:
        """The result of `work`. A ValueError is reported; so is any exception of a user's own part, with its line."""
        try:
            return work()
        except (Exception, SystemExit) as error:
            found, message = key_and_message(str(error), options, path)
            where = registry.line_in_users_file(part, error)
            if isinstance(error, ValueError) and (where is None or found != path):
                self.invalid(found, message)
            if where is None:
                raise  # a bug of a built-in part
            self.invalid(path, f"{where}: {type(error).__name__}: {error}")

    def unknown(self, owner: str, known: list[str], data: Any, path: Path) -> None:
        """Report an unknown key, with its name here if it is a key of another system, else with a similar key."""
        hints = {leaf: hint_for(leaf) for leaf in _leaves(data, path)}
        if not any(hints.values()):
            names = listed(known, like=path[-1]) or "no options"
            self.problems.add(path, f"unknown key; {owner} has {names}{did_you_mean(path[-1], known)}")
            return
        for leaf, hint in hints.items():
            self.problems.add(leaf, f"unknown key; {hint or 'Coterie has no such option'}")

    def invalid(self, path: Path, message: str) -> NoReturn:
        self.problems.add(path, message)
        raise Invalid


def _valid(values: dict[Any, Any]) -> dict[Any, Any]:
    """The values, if none is invalid or missing."""
    if any(value is INVALID or value is MISSING for value in values.values()):
        raise Invalid
    return values


def key_and_message(message: str, options: Mapping[str, Any], path: Path) -> tuple[Path, str]:
    """Split the option off a part's error message, if it begins with one: `prompts.actor: names {x}`."""
    key, colon, rest = message.partition(": ")
    inside = undotted(key)
    return ((*path, *inside), rest) if colon and inside[:1] and inside[0] in options else (path, message)


def _kind(path: Path) -> registry.Kind:
    """The kind of a part: the nearest key on its path that names one."""
    kind: registry.Kind = next(key for key in reversed(path) if key in registry.BUILTIN)
    return kind


def _is_group(hint: Any) -> bool:
    """True for types that are read item by item."""
    many = get_origin(hint) is tuple and get_args(hint)[-1] is Ellipsis
    keyed = get_origin(hint) in (dict, Mapping) and get_args(hint)[0] is str
    return many or keyed or is_dataclass(bare(hint))


def options_within(cls: Any, limits: FieldLimits) -> registry.Options:
    """A dataclass's options with the narrower types of `limits`."""
    known = registry.options_of(cls)
    return known | {name: registry.Option(hint, known[name].default) for name, hint in limits.items()}


def limits_of(hint: Any) -> FieldLimits:
    """The `FieldLimits` of an annotated dataclass."""
    notes = hint.__metadata__ if get_origin(hint) is Annotated else ()
    return next((note for note in notes if isinstance(note, FieldLimits)), FieldLimits())


def _leaves(data: Any, path: Path) -> list[Path]:
    if not isinstance(data, dict) or not data:
        return [path]
    return [leaf for key, item in data.items() for leaf in _leaves(item, (*path, key))]
