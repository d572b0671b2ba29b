"""Plain data into dataclasses, strictly: every key known, every value of its type, all mistakes found at once."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import MISSING, is_dataclass
from functools import partial
from pathlib import Path as File
from types import NoneType
from typing import Annotated, Any, get_args, get_origin

from pydantic import ConfigDict, TypeAdapter, ValidationError

from coterie.config.functions import FunctionName, function, takes_function
from coterie.config.hints import hint_for
from coterie.config.interfaces import misfit
from coterie.config.paths import located
from coterie.config.problems import ConfigError, Path, Problems, did_you_mean, listed, undotted
from coterie.config.registry import BUILTIN, Kind, Option, find, is_file, lasting, line_in_users_file, options_of
from coterie.config.type_names import bare, choices, given, is_union, wanted
from coterie.types import Part, Weighted

STRICT = ConfigDict(strict=True, allow_inf_nan=False)
EMPTY: Mapping[str, Any] = {}
WRONG = object()  # stands where a value could not be read; its problem has been noted


class Limits(dict[str, Any]):
    """Types for the fields of a dataclass that states none so narrow, as in `Annotated[Sampling, Limits(...)]`."""


class Reader:
    """Reads data as a type; what does not fit becomes a problem with the key's path."""

    def __init__(self, problems: Problems, folder: File) -> None:
        self.problems = problems
        self.folder = folder  # where a user's own files are looked for first

    def value(self, hint: Any, data: Any, path: Path) -> Any:
        kind = bare(hint)
        if isinstance(data, FunctionName) or (takes_function(hint) and data is not None):
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
        """One type or another, mostly something or null."""
        others = [member for member in get_args(bare(hint)) if member is not NoneType]
        if data is not None and len(others) == 1 and _is_group(others[0]):
            return self.value(others[0], data, path)
        return self.leaf(hint, data, path)

    def function(self, hint: Any, data: Any, path: Path) -> Any:
        if not takes_function(hint):
            declare = f"`{path[-1]}: Callable` in its class takes one"
            return self.wrong(path, f"a function is given where {wanted(hint)} is wanted; {declare}")
        try:
            return function(data, self.folder)
        except ConfigError as error:
            return self.wrong(path, str(error))

    def leaf(self, hint: Any, data: Any, path: Path) -> Any:
        try:
            written = json.dumps(data)
        except TypeError:
            kept = "a config is kept as text, numbers, lists and mappings"
            return self.wrong(path, f"a {type(data).__name__} is given, or is inside what is given; {kept}")
        try:
            # As JSON, because strict Python input refuses a list where a tuple is meant.
            read = TypeAdapter(hint, config=STRICT).validate_json(written, context={"folder": self.folder})
            return located(read, self.folder) if isinstance(read, File) else read
        except ValidationError:
            near = did_you_mean(data, choices(hint)) if isinstance(data, str) else ""
            return self.wrong(path, f"{given(data)} is given where {wanted(hint)} is wanted{near}")

    def group(self, hint: Any, data: Any, path: Path) -> Any:
        """A list or a mapping, item by item, so that a problem names the item."""
        kind = list if get_origin(hint) is tuple else dict
        if not isinstance(data, kind):
            return self.wrong(path, f"{given(data)} is given where {wanted(hint)} is wanted")
        inner = get_args(hint)[0 if kind is list else 1]
        keyed = data.items() if isinstance(data, dict) else enumerate(data)
        items = {key: self.value(inner, item, (*path, str(key))) for key, item in keyed}
        if any(item is WRONG for item in items.values()):
            return WRONG
        return items if kind is dict else tuple(items.values())

    def record(self, cls: Any, limits: Limits, data: Any, path: Path) -> Any:
        if not isinstance(data, dict):
            own = ", ".join(options_of(cls))
            return self.wrong(path, f"{given(data)} is given where a mapping is wanted; {cls.__name__} has {own}")
        return self.made(cls, cls, self.fill(cls.__name__, options_within(cls, limits), data, path), path)

    def part(self, data: Any, path: Path) -> Any:
        """`{name: chain, …options}`; the key it stands under, or the nearest above that names a kind, is its kind."""
        if not isinstance(data, dict) or "name" not in data:
            return self.wrong(path, f"{given(data)} is given where a name, or a mapping with a name, is wanted")
        name = self.value(str, data["name"], (*path, "name"))
        kind: Kind = next(key for key in reversed(path) if key in BUILTIN)
        try:
            cls = WRONG if name is WRONG else find(kind, name, self.folder)
        except ConfigError as error:
            return self.wrong((*path, "name"), str(error))
        return WRONG if cls is WRONG else self.filled(cls, lasting(name, self.folder), data, path)

    def weighted(self, data: Any, path: Path) -> Any:
        """A part with its weight beside its own options; a name alone weighs 1."""
        own = {"name": data} if isinstance(data, str) else data
        weight = 1.0
        if isinstance(own, dict) and "weight" in own:
            weight = self.value(float, own["weight"], (*path, "weight"))
            own = {key: item for key, item in own.items() if key != "weight"}
        part = self.part(own, path)
        return WRONG if part is WRONG or weight is WRONG else Weighted(part.name, part.options, part.instance, weight)

    def filled(self, cls: Any, name: str, data: dict[str, Any], path: Path) -> Any:
        known = self.tried(cls, lambda: options_of(cls), path)
        if known is WRONG:
            return WRONG
        if "name" in known:
            return self.wrong(path, f"{cls.__name__} calls an option `name`, which is taken: it says which {path[-1]}")
        own = {key: item for key, item in data.items() if key != "name"}
        options = self.fill(cls.__name__, known, own, path)
        made = self.made(cls, cls if isinstance(cls, type) else partial(partial, cls), options, path)
        if made is WRONG:
            return WRONG
        kind: Kind = next(key for key in reversed(path) if key in BUILTIN)
        unfit = self.tried(cls, lambda: misfit(kind, cls, made), path) if is_file(name) else None
        if unfit is not None:
            return WRONG if unfit is WRONG else self.wrong((*path, "name"), unfit)
        return Part(name, options, made)

    def fill(self, owner: str, known: Mapping[str, Option], data: dict[str, Any], path: Path) -> dict[str, Any]:
        """A value for every known option: as given, or its default."""
        for key in [key for key in data if key not in known]:
            self.unknown(owner, list(known), data[key], (*path, key))
        for key in [name for name, option in known.items() if option.default is MISSING and name not in data]:
            self.wrong((*path, key), f"missing; {owner} needs it")
        defaults = {name: option.default for name, option in known.items()}
        return defaults | {key: self.value(known[key].hint, data[key], (*path, key)) for key in data if key in known}

    def made(self, part: Any, make: Any, options: dict[str, Any], path: Path) -> Any:
        """What `make` makes of the options; `part` is the class or function that a complaint is about."""
        if any(value is WRONG or value is MISSING for value in options.values()):
            return WRONG
        return self.tried(part, lambda: make(**options), path, options)

    def tried(self, part: Any, work: Callable[[], Any], path: Path, options: Mapping[str, Any] = EMPTY) -> Any:
        """What `work` gives; what a user's own part raises there, whatever it is, is told with its line."""
        try:
            return work()
        except (Exception, SystemExit) as error:
            found, message = complaint(str(error), options, path)
            where = line_in_users_file(part, error)
            if isinstance(error, ValueError) and (where is None or found != path):
                return self.wrong(found, message)
            if where is None:
                raise  # what our own part raises is a bug
            return self.wrong(path, f"{where}: {type(error).__name__}: {error}")

    def unknown(self, owner: str, known: list[str], data: Any, path: Path) -> None:
        hints = {leaf: hint_for(leaf) for leaf in _leaves(data, path)}
        if not any(hints.values()):
            names = listed(known, like=path[-1]) or "no options"
            self.wrong(path, f"unknown key; {owner} has {names}{did_you_mean(path[-1], known)}")
            return
        for leaf, hint in hints.items():
            self.wrong(leaf, f"unknown key; {hint or 'nothing here corresponds to it'}")

    def wrong(self, path: Path, message: str) -> Any:
        self.problems.add(path, message)
        return WRONG


def complaint(message: str, options: Mapping[str, Any], path: Path) -> tuple[Path, str]:
    """A part may begin its own complaint with the option it means: `prompts.actor: names {x}`."""
    key, colon, rest = message.partition(": ")
    inside = undotted(key)
    return ((*path, *inside), rest) if colon and inside[:1] and inside[0] in options else (path, message)


def _is_group(hint: Any) -> bool:
    """Whether values of this type are read item by item."""
    many = get_origin(hint) is tuple and get_args(hint)[-1] is Ellipsis
    keyed = get_origin(hint) in (dict, Mapping) and get_args(hint)[0] is str
    return many or keyed or is_dataclass(bare(hint))


def options_within(cls: Any, limits: Limits) -> dict[str, Option]:
    """A dataclass's options with the narrower types in place."""
    known = options_of(cls)
    return known | {name: Option(hint, known[name].default) for name, hint in limits.items()}


def limits_of(hint: Any) -> Limits:
    """The narrower types that are noted on a dataclass."""
    notes = hint.__metadata__ if get_origin(hint) is Annotated else ()
    return next((note for note in notes if isinstance(note, Limits)), Limits())


def _leaves(data: Any, path: Path) -> list[Path]:
    if not isinstance(data, dict) or not data:
        return [path]
    return [leaf for key, item in data.items() for leaf in _leaves(item, (*path, key))]
