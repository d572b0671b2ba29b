"""Imports Python files of the user, and lists the files that a run has to copy.

A run imports its own copies. In a copy `__file__` is still the original path, so that data beside it is found. This
module imports nothing heavy, because grading processes start with it.
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
CODE_FOLDER = "code"  # in a run's folder: the copies, in a numbered subfolder per source folder
SOURCES = "sources.json"  # in there: the source folder of each number


class UserFile(SourceFileLoader):
    """Imports a user's file or a copy of it, without writing a .pyc file beside it."""

    def exec_module(self, module: ModuleType) -> None:
        module.__file__ = str(original_path(Path(self.path)))
        super().exec_module(module)

    def set_data(self, path: str, data: Any, *, _mode: int = 0o666) -> None:
        pass


def run_file(path: Path, name: str) -> ModuleType:
    """Import a Python file as the module `name`; it may import modules in its own folder."""
    _add_to_path(path.parent.resolve())
    _check_name_clashes(path.resolve())
    loader = UserFile(name, str(path))
    spec = importlib.util.spec_from_file_location(name, path, loader=loader)
    assert spec is not None  # there is a loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up here
    try:
        loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


_added: list[str] = []  # folders of user files on sys.path


def _add_to_path(folder: Path) -> None:
    if _finder not in sys.path_hooks:
        sys.path_hooks.insert(0, _finder)
        sys.path_importer_cache.clear()  # a grading process inherits the folders of its parent
    if str(folder) not in _added:
        _added.append(str(folder))
        sys.path.append(str(folder))  # last: a user's math.py must not shadow Python's


def _check_name_clashes(file: Path) -> None:
    """Reject an import whose name is taken by a module from another folder: Python would silently use that one."""
    if not file.is_file():
        return
    for name, place in _modules_beside(file, file.parent).items():
        if name in sys.modules:
            module = sys.modules[name]
            there = [*map(Path, module.__path__)] if hasattr(module, "__path__") else [Path(str(module.__file__))]
            if original_path(place) not in map(original_path, there):
                raise ImportError(
                    f"imports {name}, but {there[0]} is already imported by that name; rename one of them"
                )


def _finder(folder: str) -> FileFinder:
    """A path hook that finds modules among a run's copies."""
    if original_path(Path(folder)) == Path(folder):
        raise ImportError("not among a run's copies", path=folder)
    return FileFinder(folder, (UserFile, SOURCE_SUFFIXES))


def original_path(path: Path) -> Path:
    """The original path of a copy in a run's folder; any other path is returned unchanged."""
    for copied in (path, *path.parents):
        files = copied.parent
        if files.name == CODE_FOLDER and copied.name.isdecimal() and (files / SOURCES).is_file():
            return Path(json.loads((files / SOURCES).read_text())[copied.name]) / path.relative_to(copied)
    return path


def resolve_copies(tree: Any, run: Path) -> Any:
    """A config's tree with absolute paths for the copies that it names."""
    if not (run / CODE_FOLDER / SOURCES).is_file():
        return tree
    if isinstance(tree, dict):
        return {key: resolve_copies(value, run) for key, value in tree.items()}
    if isinstance(tree, list):
        return [resolve_copies(value, run) for value in tree]
    code = CODE.fullmatch(tree) if isinstance(tree, str) and tree.startswith(f"{CODE_FOLDER}/") else None
    return str((run / code["file"]).resolve()) + (code["name"] or "") if code else tree


def imported_files(file: Path) -> set[Path]:
    """The files in the same folder that a user's file imports, transitively."""
    found: set[Path] = set()
    queue = [file]
    while queue:
        new = set(_imported_by(queue.pop(), file.parent)) - found - {file}
        found |= new
        queue += new
    return found


def _imported_by(file: Path, folder: Path) -> Iterator[Path]:
    for place in _modules_beside(file, folder).values():
        yield from sorted(place.rglob("*.py")) if place.is_dir() else [place]


def _modules_beside(file: Path, folder: Path) -> dict[str, Path]:
    """The modules and packages in a folder that a file imports, by name, unless Python finds them elsewhere first."""
    path = [*(entry for entry in sys.path if entry not in _added), str(folder)]
    specs = {name: PathFinder.find_spec(name, path) for name in _imported_names(file) - sys.stdlib_module_names}
    return {
        name: place
        for name, spec in specs.items()
        if spec is not None
        # A package without __init__.py is in every folder of that name.
        for place in map(Path.resolve, map(Path, spec.submodule_search_locations or [str(spec.origin)]))
        if place.parent == folder
    }


def _imported_names(file: Path) -> set[str]:
    """The top-level names of all modules that a file imports anywhere; none if it does not parse."""
    found: set[str] = set()
    try:
        tree = ast.parse(file.read_bytes())
    except (SyntaxError, ValueError):  # reported when it is imported
        return found
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module.split(".")[0])
    return found
