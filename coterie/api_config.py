"""What is given from Python, as a config says it."""

from __future__ import annotations

import copy
import inspect
import json
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

from coterie.compat.siirl.read import is_graph
from coterie.compat.siirl.translate import translate
from coterie.config import ConfigError, yamltree
from coterie.config.config import plain, text_of
from coterie.config.functions import named
from coterie.config.problems import Problems, Sources
from coterie.config.registry import BUILTIN, Kind


def tree(config: str | Path | Mapping[str, Any]) -> tuple[dict[str, Any], Problems, Path]:
    """A recipe's keys, what its problems are told with, and the folder in which its files are looked for."""
    if isinstance(config, Mapping):
        return copy.deepcopy(named(config, "config")), Problems(Sources("the config given to AgentTrainer")), Path()
    path = Path(config)
    if not path.is_file():
        raise ConfigError(f"{path}: there is no such file")
    problems = Problems(Sources(str(path)))
    read = yamltree.read(text_of(path), problems)
    if not isinstance(read, dict):
        raise ConfigError(f"{path}: a config is a mapping of keys to values")
    return {"name": path.stem, **read}, problems, path.parent


def is_graph_file(path: Path) -> bool:
    """Whether a graph in siiRL's format is there, and not a recipe."""
    return path.is_file() and is_graph(text_of(path))


def graph(
    path: Path, files: Mapping[str, str], overrides: Sequence[str]
) -> tuple[dict[str, Any], Problems, Path, list[str]]:
    """A graph as a config of ours; the files are told in its own words."""
    words = {"train": "data.train_files", "test": "data.val_files"}
    told = [f"{words[split]}={json.dumps(file)}" for split, file in files.items()]
    problems = Problems(Sources(str(path)))
    translated, rest = translate(text_of(path), path, [*told, *overrides], problems)
    return {"name": path.stem, **translated}, problems, path.parent, rest


def must_fit_graph(workflow: Any, arguments: Any, files: Any) -> None:
    if workflow is not None or arguments:
        raise ConfigError("workflow: has no place here: the graph says who speaks when")
    if files is None:
        raise ConfigError("train_dataset: a graph has environments of its own; give a file, or rows")


def with_files(tree: Mapping[str, Any], files: Mapping[str, str]) -> dict[str, Any]:
    """The environment that the config names, `rows` if it names none, with these files."""
    return {**(long(tree, "env") if "env" in tree else {"name": "rows"}), **files}


def long(tree: Mapping[str, Any], kind: str) -> dict[str, Any]:
    """A part of the config as a mapping, also where only its name is given."""
    if kind not in tree:
        raise ConfigError(f"{kind}_args: have no effect without a {kind}")
    named = tree[kind]
    return {"name": named} if isinstance(named, str) else dict(named)


def part(kind: Kind, given: Any) -> dict[str, Any]:
    """A name, a class, a function or an instance, as a config says it."""
    if isinstance(given, str):
        return {"name": given}
    if inspect.isclass(given) or inspect.isfunction(given):
        return {"name": _name(kind, given)}
    if not is_dataclass(given):
        raise ConfigError(f"{kind}: {type(given).__name__} must be a dataclass, so that a run can write it down")
    options = {f.name: getattr(given, f.name) for f in fields(given) if f.name[0] != "_"}
    return {"name": _name(kind, type(given)), **plain(named(options, kind))}


def _name(kind: Kind, part: Any) -> str:
    """How a config names a class or function: what is ours by its name, what is yours by its file."""
    known = {place: name for name, place in BUILTIN[kind].items()}
    place = f"{part.__module__}:{part.__qualname__}"
    if place in known:
        return known[place]
    try:
        file = inspect.getsourcefile(part)
    except TypeError:  # made in a session without a file
        file = None
    if file is None or not Path(file).is_file() or not part.__qualname__.isidentifier():
        raise ConfigError(f"{kind}: {part.__qualname__} must stand at the top of a file, which can be read again")
    return f"{Path(file).resolve()}:{part.__qualname__}"
