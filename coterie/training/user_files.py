"""What a run's folder holds of the user's own: copies of code, and where data lies.

Code that a config names, as in `env: mine.py:Words`, is copied with the modules beside it that it imports. Then a run
can be moved, or used from another folder, and goes on with the code that it began with.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from coterie.config.settings import PARTS
from coterie.user_code import CODE, FILES, SOURCES, imported_files


@dataclass
class UserFileCopies:
    """A run's config, with the names of its copies, and the copies to be written."""

    run: Path
    files: dict[str, bytes] = field(default_factory=dict)  # by their path in the run's folder
    sources: dict[str, str] = field(default_factory=dict)  # by number, the folder that copies come from

    def config(self, tree: Mapping[str, Any]) -> dict[str, Any]:
        """The config as the run's folder holds it."""
        self.sources = _sources(self.run)
        kept = {key: self._value(value, part=key in PARTS) for key, value in tree.items()}
        if self.sources:
            self.files[f"{FILES}/{SOURCES}"] = json.dumps(self.sources, indent=1).encode()
        return kept

    def _value(self, value: Any, part: bool) -> Any:
        if isinstance(value, Mapping):
            return {key: self._value(inner, part) for key, inner in value.items()}
        if isinstance(value, list):
            return [self._value(inner, part) for inner in value]
        return self._text(value, part) if isinstance(value, str) else value

    def _text(self, text: str, part: bool) -> str:
        code = CODE.fullmatch(text)
        if code and os.path.isfile(code["file"]):
            return self._copied(Path(code["file"]).resolve()) + (code["name"] or "")
        # Not a bare word, nor "." alone: an option may well be called like a folder.
        is_path = part and re.fullmatch(r".*\w.*", text) and ("." in text or "/" in text)
        return os.path.abspath(text) if is_path and os.path.exists(text) else text

    def _copied(self, file: Path) -> str:
        """The name of a file's copy in the run's folder."""
        if file.is_relative_to(self.run.resolve() / FILES):
            return file.relative_to(self.run.resolve()).as_posix()
        place = f"{FILES}/{self._number(file.parent)}"
        for one in (file, *sorted(imported_files(file))):
            self.files[f"{place}/{one.relative_to(file.parent).as_posix()}"] = one.read_bytes()
        return f"{place}/{file.name}"

    def _number(self, folder: Path) -> str:
        known = {source: number for number, source in self.sources.items()}
        number = known.get(str(folder), str(len(self.sources)))
        self.sources[number] = str(folder)
        return number


def _sources(run: Path) -> dict[str, str]:
    known = run / FILES / SOURCES
    return dict(json.loads(known.read_text())) if known.is_file() else {}
