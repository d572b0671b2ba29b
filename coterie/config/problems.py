"""What is wrong with a config, and where it says so."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import NoReturn

from coterie.errors import UserError

Path = tuple[str, ...]
OVERRIDE = "override "  # begins the place of a key that the command line has set


class ConfigError(UserError, ValueError):
    """The config cannot run as it stands; one line per problem."""


def dotted(path: Path) -> str:
    """A path as it is written in an override; a name with a dot in it is quoted."""
    return ".".join(f'"{name}"' if "." in name else name for name in path)


def undotted(key: str) -> Path:
    """The names in a dotted key: `roles."v1.5".stop` has three."""
    return tuple(quoted or bare for quoted, bare in re.findall(r'"([^"]*)"|([^."]+)', key))


NAME = r'(?:"[^"]+"|[^."]+)'


def is_dotted(key: str) -> bool:
    """Whether a key is names with dots between them; `steps.`, `.steps` and `a..b` lack one."""
    return re.fullmatch(rf"{NAME}(?:\.{NAME})*", key) is not None


def shortened(text: str, most: int = 100) -> str:
    """A text as a complaint quotes it."""
    return text if len(text) <= most else f"{text[:most]}…"


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """`; did you mean clip?`, or nothing where no name is near."""
    by_folded = {known.casefold(): known for known in names}
    near = get_close_matches(name.casefold(), by_folded, n=1)
    return f"; did you mean {by_folded[near[0]]}?" if near else ""


def listed(names: Sequence[str], like: str, most: int = 8) -> str:
    """The names, or the most similar of them where they are many."""
    if len(names) <= most:
        return ", ".join(names)
    return ", ".join(get_close_matches(like, names, n=most, cutoff=0.0)) + ", …"


@dataclass
class Sources:
    """Where each key was written: `recipes/debate.yaml, line 14` or `override steps=3`."""

    file: str = "no file"
    places: dict[Path, str] = field(default_factory=dict)

    def place(self, path: Path) -> str:
        """Where a key stands, or the nearest thing around it that was written."""
        while path and path not in self.places:
            path = path[:-1]
        return self.places[path] if path else self.file

    def is_written(self, path: Path) -> bool:
        """Whether a key was given at all, in the file or on the command line."""
        return path in self.places

    def is_overridden(self, path: Path) -> bool:
        """Whether a key was set on the command line, or made there to set one inside it."""
        return self.place(path).startswith(OVERRIDE)

    def overridden(self) -> list[Path]:
        """The keys that were set on the command line."""
        return [path for path in self.places if self.is_overridden(path)]

    def forget(self, path: Path) -> None:
        """Drop a key and all below it, which an override replaces."""
        self.places = {known: place for known, place in self.places.items() if known[: len(path)] != path}


@dataclass
class Problems:
    """Collects what is wrong, so that a user sees all of it at once."""

    sources: Sources
    found: list[str] = field(default_factory=list)

    def add(self, path: Path, message: str) -> None:
        where = f"{dotted(path)}: " if path else ""
        self.found.append(f"{where}{message} ({self.sources.place(path)})")

    def refuse(self, path: Path, message: str) -> NoReturn:
        """Go no further: a value made up in the place of this one would be complained of as well."""
        self.add(path, message)
        raise ConfigError("\n".join(self.found))

    def raise_any(self) -> None:
        if self.found:
            raise ConfigError("\n".join(self.found))
