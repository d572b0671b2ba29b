"""What somebody has changed in a run's config.yaml by hand: the run keeps a copy of it as it was written."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from coterie.config import yamltree
from coterie.config.load import read_text
from coterie.config.problems import Path as Keys
from coterie.config.problems import Problems, Sources, dotted
from coterie.user_code import FILES

AS_WRITTEN = f"{FILES}/config.yaml"
ABSENT = "not there"


def manual_edits(run: Path) -> list[str]:
    """A line for each key that is not as the run wrote it. What a command line changes, the run writes itself."""
    if not (run / AS_WRITTEN).is_file():
        return []
    config = run / "config.yaml"
    before, now = (dict(_values(_read(file), ())) for file in (run / AS_WRITTEN, config))
    both = {keys: (before.get(keys, ABSENT), now.get(keys, ABSENT)) for keys in {**before, **now}}
    return [f"{config}: {dotted(keys)} is {new} by hand, was {old}" for keys, (old, new) in both.items() if old != new]


def _read(file: Path) -> Any:
    return yamltree.read(read_text(file), Problems(Sources(str(file))))


def _values(tree: Any, keys: Keys) -> Iterator[tuple[Keys, str]]:
    """Every value under the keys that lead to it, as JSON."""
    if isinstance(tree, dict) and tree:
        for key, inner in tree.items():
            yield from _values(inner, (*keys, key))
    else:
        yield keys, json.dumps(tree, ensure_ascii=False)
