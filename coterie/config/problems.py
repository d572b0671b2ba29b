"""Problems of a config, collected with the place of each key."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import NoReturn

from coterie.errors import UserError

Path = tuple[str, ...]
OVERRIDE = "override "  # prefix of the place of a key from the command line


class ConfigError(UserError, ValueError):
    """A config that cannot run; one line per problem."""


def dotted(path: Path) -> str:
    """A path as an override writes it; a name with a dot in it is quoted."""
    return ".".join(f'"{name}"' if "." in name else name for name in path)


def undotted(key: str) -> Path:
    """The names of a dotted key: `roles."v1.5".stop` has three."""
    return tuple(quoted or bare for quoted, bare in re.findall(r'"([^"]*)"|([^."]+)', key))


NAME = r'(?:"[^"]+"|[^."]+)'


def is_dotted(key: str) -> bool:
    """True for names separated by dots; `steps.`, `.steps` and `a..b` are not."""
    return re.fullmatch(rf"{NAME}(?:\.{NAME})*", key) is not None


def shortened(text: str, most: int = 100) -> str:
    """A text, cut for an error message."""
    return text if len(text) <= most else f"{text[:most]}…"


def listed(names: Sequence[str], like: str, most: int = 8) -> str:
    """The names, for a message; of more than `most`, only those that are most similar to `like`."""
    if len(names) <= most:
        return ", ".join(names)
    return ", ".join(get_close_matches(like, names, n=most, cutoff=0.0)) + ", …"


@dataclass
class Sources:
    """Where each key was written: `recipes/debate.yaml, line 14` or `override steps=3`."""

    file: str = "no file"
    places: dict[Path, str] = field(default_factory=dict)

    def place(self, path: Path) -> str:
        """Where a key was written, or else the nearest key around it."""
        while path and path not in self.places:
            path = path[:-1]
        return self.places[path] if path else self.file

    def is_written(self, path: Path) -> bool:
        """True if the key stands in the file or on the command line."""
        return path in self.places

    def is_overridden(self, path: Path) -> bool:
        """True if the key, or the one around it, was set on the command line."""
        return self.place(path).startswith(OVERRIDE)

    def overridden(self) -> list[Path]:
        """The keys that were set on the command line."""
        return [path for path in self.places if self.is_overridden(path)]

    def forget(self, path: Path) -> None:
        """Drop a key and all keys inside it; an override replaces them."""
        self.places = {known: place for known, place in self.places.items() if known[: len(path)] != path}


@dataclass
class Problems:
    """Collects problems, so that a user sees all of them at once."""

    sources: Sources
    found: list[str] = field(default_factory=list)

    def add(self, path: Path, message: str) -> None:
        where = f"{dotted(path)}: " if path else ""
        self.found.append(f"{where}{message} ({self.sources.place(path)})")

    def refuse(self, path: Path, message: str) -> NoReturn:
        """Report and stop: reading on without this value would only add follow-up errors."""
        self.add(path, message)
        raise ConfigError("\n".join(self.found))

    def raise_any(self) -> None:
        if self.found:
            raise ConfigError("\n".join(self.found))
