"""Runs a user's own Python files, and finds what a run has to copy of them. Light on purpose: grading processes
start with it.

A run runs its copies. In a copy `__file__` is still the path of the original, so that data beside it is found.
"""

from __future__ import annotations

import ast
import importlib.util
import json
import re
import sys
from collections.abc import Iterator
from importlib.machinery import SOURCE_SUFFIXES, FileFinder, PathFinder, SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any

CODE = re.compile(r"(?P<file>.+\.py)(?P<name>:\w+)?")  # mine.py or mine.py:Name
FILES = "files"  # in a run's folder: its copies, in a numbered folder for each folder that they come from
SOURCES = "sources.json"  # in there: by number, the folder that the copies come from


class UserFile(SourceFileLoader):
    """Loads a user's file, or a copy of it, and leaves no compiled file beside it."""

    def exec_module(self, module: ModuleType) -> None:
        module.__file__ = str(original(Path(self.path)))
        super().exec_module(module)

    def set_data(self, path: str, data: Any, *, _mode: int = 0o666) -> None:
        pass


def run_file(path: Path, name: str) -> ModuleType:
    """Run a Python file as the module `name`; it may import modules that lie beside it."""
    _add(path.parent.resolve())
    _must_have_its_own(path.resolve())
    loader = UserFile(name, str(path))
    spec = importlib.util.spec_from_file_location(name, path, loader=loader)
    assert spec is not None  # there is a loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # where dataclasses look their module up
    try:
        loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


_added: list[str] = []  # folders of users' files


def _add(folder: Path) -> None:
    if _finder not in sys.path_hooks:
        sys.path_hooks.insert(0, _finder)
        sys.path_importer_cache.clear()  # a grading process has the folders of its parent from the start
    if str(folder) not in _added:
        _added.append(str(folder))
        sys.path.append(str(folder))  # at the end: a user's math.py must not stand in for Python's


def _must_have_its_own(file: Path) -> None:
    """Refuse a module that was loaded from another folder under the same name: Python would take it for this one."""
    if not file.is_file():
        return
    for name, place in _beside(file, file.parent).items():
        if name in sys.modules:
            module = sys.modules[name]
            there = Path(next(iter(module.__path__))) if hasattr(module, "__path__") else Path(str(module.__file__))
            if original(there) != original(place):
                raise ImportError(f"imports {name}, but {there} has that name already; call one of them otherwise")


def _finder(folder: str) -> FileFinder:
    """Finds modules among a run's copies."""
    if original(Path(folder)) == Path(folder):
        raise ImportError("not among a run's copies", path=folder)
    return FileFinder(folder, (UserFile, SOURCE_SUFFIXES))


def original(path: Path) -> Path:
    """What a copy in a run's folder was made of; any other path is itself."""
    for copied in (path, *path.parents):
        files = copied.parent
        if files.name == FILES and copied.name.isdecimal() and (files / SOURCES).is_file():
            return Path(json.loads((files / SOURCES).read_text())[copied.name]) / path.relative_to(copied)
    return path


def in_run(tree: Any, run: Path) -> Any:
    """A config's data with the copies that it names in the place where they are now."""
    if not (run / FILES / SOURCES).is_file():
        return tree
    if isinstance(tree, dict):
        return {key: in_run(value, run) for key, value in tree.items()}
    if isinstance(tree, list):
        return [in_run(value, run) for value in tree]
    code = CODE.fullmatch(tree) if isinstance(tree, str) and tree.startswith(f"{FILES}/") else None
    return str((run / code["file"]).resolve()) + (code["name"] or "") if code else tree


def imported(file: Path) -> set[Path]:
    """The files beside a user's file that it imports, and that these import."""
    found: set[Path] = set()
    waiting = [file]
    while waiting:
        new = set(_imported(waiting.pop(), file.parent)) - found - {file}
        found |= new
        waiting += new
    return found


def _imported(file: Path, folder: Path) -> Iterator[Path]:
    for place in _beside(file, folder).values():
        yield from sorted(place.rglob("*.py")) if place.is_dir() else [place]


def _beside(file: Path, folder: Path) -> dict[str, Path]:
    """Modules and packages in a folder that a file imports, by name: those that Python does not find elsewhere."""
    path = [*(entry for entry in sys.path if entry not in _added), str(folder)]
    specs = {name: PathFinder.find_spec(name, path) for name in _roots(file) - sys.stdlib_module_names}
    places = {
        name: Path((spec.submodule_search_locations or [str(spec.origin)])[0]).resolve()
        for name, spec in specs.items()
        if spec is not None
    }
    return {name: place for name, place in places.items() if place.parent == folder}


def _roots(file: Path) -> set[str]:
    """The first names of all modules that are imported anywhere in a file; none where it is no Python."""
    found: set[str] = set()
    try:
        tree = ast.parse(file.read_bytes())
    except (SyntaxError, ValueError):  # which is told when it runs
        return found
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module.split(".")[0])
    return found
