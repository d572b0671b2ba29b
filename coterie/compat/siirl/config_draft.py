"""One graph on its way to a config."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path as File
from typing import Any

from coterie.compat.siirl.config_sheet import Given, Sheet
from coterie.compat.siirl.node import Nodes
from coterie.compat.siirl.script import Script
from coterie.compat.siirl.team import Cast
from coterie.config.problems import Path, Problems


@dataclass
class Draft:
    """The graph, what its script says, and the config so far."""

    graph: Nodes
    script: Script  # what holds for all nodes
    folder: File
    problems: Problems
    unused: set[str] = field(default_factory=set)  # what was said without effect

    @cached_property
    def cast(self) -> Cast:
        return Cast(self.graph)

    @cached_property
    def sheet(self) -> Sheet:
        return Sheet(self.problems)

    def put(self, path: Path, value: Any, written: Path | str) -> None:
        """Set a key; `written` is the place that it comes from, or the key of the graph that it does."""
        self.sheet.put(path, value, written if isinstance(written, str) else self.place(written))

    def given(self, path: Path, told: Given | None) -> None:
        """Set a key to what was told of it, if anything was."""
        if told is not None:
            self.sheet.put(path, told.value, told.place)

    def place(self, path: Path) -> str:
        return self.problems.sources.place(path)

    def attempt(self, action: Callable[[], Any], at: Path, place: str | None = None) -> Any:
        """What comes of an action; a ValueError becomes a problem at this key."""
        try:
            return action()
        except ValueError as error:
            if place is not None:
                self.problems.sources.places[at] = place
            self.problems.add(at, str(error))
            return None

    def file(self, path: str) -> File:
        """A file that the graph names: beside it or above it, as in siiRL's own tree, or from where the command was
        given; its name alone where there is none."""
        named, beside = File(path).expanduser(), self.folder.resolve()
        around = [folder / named for folder in (beside, *beside.parents)]
        return next((file.resolve() for file in (*around, named) if file.is_file()), named)
