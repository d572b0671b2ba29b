"""The config under construction: every key with its value and the place it comes from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path as File
from typing import Any, NamedTuple

from coterie.compat.siirl.nodes import Nodes
from coterie.compat.siirl.team import GraphTeam
from coterie.config.problems import Path, Problems, dotted


class Sourced(NamedTuple):
    """A value, and where it was written."""

    value: Any
    place: str


Parameters = dict[str, Sourced]  # by siiRL's full names


@dataclass
class ConfigDraft:
    """A graph, its parameters, and the keys of the config so far."""

    graph: Nodes
    parameters: Parameters  # for all nodes; a node's own override them
    folder: File
    problems: Problems
    unused: set[str] = field(default_factory=set)  # parameters without effect
    tree: dict[str, Any] = field(default_factory=dict)
    values: dict[Path, tuple[bool, Sourced]] = field(default_factory=dict)  # whether a node set it, and the value

    @cached_property
    def team(self) -> GraphTeam:
        return GraphTeam(self.graph)

    def put(self, path: Path, value: Any, source: Path | str, by_node: bool = False) -> None:
        """Set a key; `source` is its place, or the key of the graph it comes from. Nodes override parameters."""
        place = source if isinstance(source, str) else self.place(source)
        if path in self.values:
            before, old = self.values[path]
            if before and not by_node:
                return
            if before == by_node and old.value != value:
                conflict = f"has one value for all nodes, but is {old.value!r} ({old.place}) and {value!r} ({place})"
                self.problems.found.append(f"{dotted(path)} {conflict}")
                return
        self.values[path] = (by_node, Sourced(value, place))
        self.problems.sources.places[path] = place
        inside = self.tree
        for name in path[:-1]:
            inside = inside.setdefault(name, {})
        inside[path[-1]] = value

    def put_sourced(self, path: Path, value: Sourced | None) -> None:
        """Set a key, unless the value is None."""
        if value is not None:
            self.put(path, value.value, value.place)

    def get(self, *path: str) -> Sourced | None:
        """The value of a key, if it is set."""
        return self.values[path][1] if path in self.values else None

    def place(self, path: Path) -> str:
        return self.problems.sources.place(path)

    def attempt(self, action: Callable[[], Any], at: Path, place: str | None = None) -> Any:
        """The result of an action; a ValueError becomes a problem at this key."""
        try:
            return action()
        except ValueError as error:
            if place is not None:
                self.problems.sources.places[at] = place
            self.problems.add(at, str(error))
            return None

    def file(self, path: str) -> File:
        """A file that the graph names, looked up in its folder and those above (as in siiRL's tree), then in the
        current one; the bare name if there is none."""
        named, beside = File(path).expanduser(), self.folder.resolve()
        around = [folder / named for folder in (beside, *beside.parents)]
        return next((file.resolve() for file in (*around, named) if file.is_file()), named)
