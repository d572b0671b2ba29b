"""Options that are functions: a config names them, `path/to/file.py:name`, so that a resumed run finds them again."""

from __future__ import annotations

import collections.abc
import inspect
from collections.abc import Mapping
from pathlib import Path
from types import NoneType
from typing import Any, get_args, get_origin

from coterie.config.problems import ConfigError
from coterie.config.registry import attribute_of, is_file
from coterie.config.type_names import bare, is_union


class FunctionName(str):
    """The name of a function that was given from Python; as a text, an option that takes none would accept it."""


def takes_function(hint: Any) -> bool:
    """Whether an option is declared `Callable[…]`, or `Callable[…] | None`."""
    kind = bare(hint)
    if is_union(kind):
        return any(takes_function(member) for member in get_args(kind) if member is not NoneType)
    return kind is collections.abc.Callable or get_origin(kind) is collections.abc.Callable


def function(name: Any, folder: Path) -> Any:
    """The function that a config names; a ConfigError where it names none."""
    if not isinstance(name, str) or not is_file(name):
        raise ConfigError(f"{name!r} names no function; path/to/file.py:name does")
    found = attribute_of(name, folder)
    if not callable(found):
        raise ConfigError(f"{name} is a {type(found).__name__}, and a function is wanted")
    return found


def named(value: Any, key: str) -> Any:
    """A value with its functions replaced by their names; `key` says where it was given."""
    if isinstance(value, Mapping):
        return {name: named(item, f"{key}.{name}") for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [named(item, f"{key}.{place}") for place, item in enumerate(value)]
    return FunctionName(_name(value, key)) if callable(value) else value


def function_name(given: Any) -> str | None:
    """Where a function stands; None for one that no other process could find, such as a lambda."""
    if not inspect.isfunction(given) or not given.__qualname__.isidentifier():
        return None
    file = inspect.getsourcefile(given)
    return f"{Path(file).resolve()}:{given.__qualname__}" if file is not None and Path(file).is_file() else None


def _name(given: Any, key: str) -> str:
    if (name := function_name(given)) is None:
        what = getattr(given, "__qualname__", type(given).__name__)
        raise ConfigError(
            f"{key}: {what} must be a function at the top of a file, so that a resumed run finds it again"
        )
    return name
