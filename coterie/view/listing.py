"""The runs, comparisons and game results in the folders that a viewer was started with. Nothing else can be read."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from coterie.episode_files import Row
from coterie.errors import UserError
from coterie.view.run_folder import RunFolder

DEPTH = 3  # folders below those named in which runs are looked for
# Files with results, by kind: what `coterie compare` and `coterie bench games --out` write.
RESULTS = {"comparison": "comparison.json", "games": "games.json"}
SKIPPED = {"checkpoints", "episodes", "eval", "counterfactuals", "tensorboard", "code", "rewound"}


class NoRuns(UserError, ValueError):
    """A folder without a run in it."""


class Listing:
    """Runs by name. Names come from the listing alone, so no request can name a path."""

    def __init__(self, folders: Sequence[Path]) -> None:
        self.folders = folders
        self._runs: dict[str, RunFolder] = {}
        for folder in folders:
            if not folder.is_dir():
                raise NoRuns(f"{folder}: no such folder; name a run's folder, or one with runs in it")

    def refresh(self) -> dict[str, RunFolder]:
        """All runs, including new ones."""
        known = {run.path: run for run in self._runs.values()}
        paths = _named(path for path in self._folders() if _is_run(path))
        self._runs = {name: known.get(path) or RunFolder(path) for name, path in paths.items()}
        return self._runs

    def _folders(self) -> Iterator[Path]:
        return (path for folder in self.folders for path in _walk(folder.resolve(), DEPTH))

    def run(self, name: str) -> RunFolder:
        """A run by its name; KeyError if it is not listed."""
        return self._runs[name] if name in self._runs else self.refresh()[name]

    def results(self) -> dict[str, tuple[str, Path]]:
        """Comparisons and games by the name of their folder: the kind, and the file."""
        names = _named(path for path in self._folders() if _results_in(path))
        return {name: (kind, path / RESULTS[kind]) for name, path in names.items() for kind in _results_in(path)[:1]}

    def result(self, name: str) -> Row:
        """What one of them found; `runs` of a comparison are names in this listing. KeyError if it is not listed."""
        kind, file = self.results()[name]
        found: Any = json.loads(file.read_text(errors="replace"))
        if kind == "games" and isinstance(found, list):
            return {"kind": kind, "results": found}
        if kind == "games" or not isinstance(found, dict) or not isinstance(found.get("runs"), list):
            raise UserError(f"{file.name}: not what `coterie compare` or `coterie bench games` writes, or damaged")
        runs = [one for one, run in self.refresh().items() if run.path.parent == file.parent]
        return found | {"kind": kind, "runs": [run for run in runs if self._runs[run].path.name in found["runs"]]}

    def summaries(self) -> list[Row]:
        """The list of runs, with the config keys in which they differ."""
        runs = self.refresh()
        configs = {name: run.config() for name, run in runs.items()}
        keys = differing(list(configs.values()))
        return [
            run.summary() | {"name": name, "folder": str(run.path), "differs": {k: configs[name].get(k) for k in keys}}
            for name, run in runs.items()
        ]


def differing(configs: Sequence[dict[str, object]]) -> list[str]:
    """The keys that do not have one value in all configs; `name` always differs."""
    keys = dict.fromkeys(key for config in configs for key in config if key != "name")
    return [key for key in keys if len({repr(config.get(key)) for config in configs}) > 1]


def _walk(folder: Path, depth: int) -> Iterator[Path]:
    """The folder and those below it; not inside runs."""
    yield folder
    if depth and not _is_run(folder):
        inside = [path for path in folder.iterdir() if path.is_dir() and not path.name.startswith(".")]
        for path in sorted(inside):
            # A link may lead out of the folders that were named.
            if path.name not in SKIPPED and not path.is_symlink():
                yield from _walk(path, depth - 1)


def _is_run(folder: Path) -> bool:
    return (folder / "config.yaml").is_file()


def _results_in(folder: Path) -> list[str]:
    return [kind for kind, file in RESULTS.items() if (folder / file).is_file() and not (folder / file).is_symlink()]


def _named(paths: Iterable[Path]) -> dict[str, Path]:
    """Folders by their last name; `name~2` where it is taken."""
    named: dict[str, Path] = {}
    for path in dict.fromkeys(paths):
        name, n = path.name, 2
        while name in named:
            name, n = f"{path.name}~{n}", n + 1
        named[name] = path
    return named
