"""The user's files in a run's folder: copies of code, and manual edits of config.yaml.

Code that a config names, as in `env: mine.py:Words`, is copied with the modules that it imports from its folder. So a
run can be moved, and resumes with the code that it started with.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from coterie.config import Config, yamltree
from coterie.config.load import read_text, to_tree
from coterie.config.problems import Path as Keys
from coterie.config.problems import Problems, Sources, dotted
from coterie.config.settings import PARTS
from coterie.user_code import CODE, CODE_FOLDER, SOURCES, imported_files

WRITTEN_CONFIG = f"{CODE_FOLDER}/config.yaml"  # config.yaml as the run wrote it
ABSENT = "absent"


@dataclass
class UserFileCopies:
    """Rewrites a config to name the run's copies, and collects the copies to be written."""

    run: Path
    files: dict[str, bytes] = field(default_factory=dict)  # content by path in the run's folder
    sources: dict[str, str] = field(default_factory=dict)  # the source folder of each number

    def config(self, tree: Mapping[str, Any]) -> dict[str, Any]:
        """The config as it is stored in the run's folder."""
        self.sources = _sources(self.run)
        stored = {key: self._value(value, part=key in PARTS) for key, value in tree.items()}
        if self.sources:
            self.files[f"{CODE_FOLDER}/{SOURCES}"] = json.dumps(self.sources, indent=1).encode()
        return stored

    def _value(self, value: Any, part: bool) -> Any:
        if isinstance(value, Mapping):
            return {key: self._value(inner, part) for key, inner in value.items()}
        if isinstance(value, list):
            return [self._value(inner, part) for inner in value]
        return self._text(value, part) if isinstance(value, str) else value

    def _text(self, text: str, part: bool) -> str:
        code = CODE.fullmatch(text)
        if code and os.path.isfile(code["file"]):
            return self._copy(Path(code["file"]).resolve()) + (code["name"] or "")
        # Not a bare word, nor "." alone: an option's value may equal the name of a folder.
        is_path = part and re.fullmatch(r".*\w.*", text) and ("." in text or "/" in text)
        return os.path.abspath(text) if is_path and os.path.exists(text) else text

    def _copy(self, file: Path) -> str:
        """Copy a file and its local imports; returns the path of the copy in the run's folder."""
        if file.is_relative_to(self.run.resolve() / CODE_FOLDER):
            return file.relative_to(self.run.resolve()).as_posix()
        place = f"{CODE_FOLDER}/{self._number(file.parent)}"
        for one in (file, *sorted(imported_files(file))):
            self.files[f"{place}/{one.relative_to(file.parent).as_posix()}"] = one.read_bytes()
        return f"{place}/{file.name}"

    def _number(self, folder: Path) -> str:
        known = {source: number for number, source in self.sources.items()}
        number = known.get(str(folder), str(len(self.sources)))
        self.sources[number] = str(folder)
        return number


def _sources(run: Path) -> dict[str, str]:
    known = run / CODE_FOLDER / SOURCES
    return dict(json.loads(known.read_text())) if known.is_file() else {}


def manual_edits(run: Path) -> list[str]:
    """A line for each key of config.yaml that was edited by hand since the run wrote it."""
    if not (run / WRITTEN_CONFIG).is_file():
        return []
    config = run / "config.yaml"
    before, now = (dict(_leaves(_read(file), ())) for file in (run / WRITTEN_CONFIG, config))
    both = {keys: (before.get(keys, ABSENT), now.get(keys, ABSENT)) for keys in {**before, **now}}
    edited = {dotted(keys): f"{old} → {new}" for keys, (old, new) in both.items() if old != new}
    return [f"{config}: {key} was edited by hand: {change}" for key, change in edited.items()]


def changed_keys(run: Path, one: Config, other: Config) -> list[str]:
    """The keys that differ between two configs; paths of the user's files and of the run's copies count as equal."""
    leaves = [dict(_leaves(UserFileCopies(run).config(to_tree(config)), ())) for config in (one, other)]
    keys = {**leaves[0], **leaves[1]}
    return [dotted(path) for path in keys if leaves[0].get(path, ABSENT) != leaves[1].get(path, ABSENT)]


def _read(file: Path) -> Any:
    return yamltree.read(read_text(file), Problems(Sources(str(file))))


def _leaves(tree: Any, keys: Keys) -> Iterator[tuple[Keys, str]]:
    """Every leaf value as JSON, by its path of keys."""
    if isinstance(tree, dict) and tree:
        for key, inner in tree.items():
            yield from _leaves(inner, (*keys, key))
    else:
        yield keys, json.dumps(tree, ensure_ascii=False)
