"""A config in the making: every key with its value and the place that it comes from."""

from __future__ import annotations

from typing import Any, NamedTuple

from coterie.config.problems import Path, Problems, dotted


class Given(NamedTuple):
    """A value, and where it was written."""

    value: Any
    place: str


class Sheet:
    """Collects the keys of a config. What a node says goes over what the script says for all."""

    def __init__(self, problems: Problems) -> None:
        self.problems = problems
        self.tree: dict[str, Any] = {}
        self.written: dict[Path, tuple[bool, Given]] = {}

    def put(self, path: Path, value: Any, place: str, by_node: bool = False) -> None:
        if path in self.written:
            before, old = self.written[path]
            if before and not by_node:
                return
            if before == by_node and old.value != value:
                key = dotted(path)
                told = f"{key} is the same for all here, but it is given as {old.value!r} ({old.place}) and {value!r}"
                self.problems.found.append(f"{told} ({place})")
                return
        self.written[path] = (by_node, Given(value, place))
        self.problems.sources.places[path] = place
        inside = self.tree
        for name in path[:-1]:
            inside = inside.setdefault(name, {})
        inside[path[-1]] = value

    def get(self, *path: str) -> Given | None:
        """What was put there, if anything."""
        return self.written[path][1] if path in self.written else None
