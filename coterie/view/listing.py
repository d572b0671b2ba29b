"""The runs that a viewer shows: the folders it was started with, and the runs in them. Nothing else can be read."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from coterie.episode_files import Row
from coterie.errors import UserError
from coterie.view.run_folder import RunFolder

DEPTH = 3  # folders below those named in which runs are looked for
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
        """All runs, also those that have appeared since."""
        known = {run.path: run for run in self._runs.values()}
        paths = dict.fromkeys(path for folder in self.folders for path in _runs_in(folder.resolve(), DEPTH))
        named: dict[str, RunFolder] = {}
        for path in paths:
            name, n = path.name, 2
            while name in named:
                name, n = f"{path.name}~{n}", n + 1
            named[name] = known.get(path) or RunFolder(path)
        self._runs = named
        return named

    def run(self, name: str) -> RunFolder:
        """A run by its name; KeyError if it is not listed."""
        return self._runs[name] if name in self._runs else self.refresh()[name]

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


def _runs_in(folder: Path, depth: int) -> Iterable[Path]:
    if (folder / "config.yaml").is_file():
        yield folder
    elif depth:
        inside = [path for path in folder.iterdir() if path.is_dir() and not path.name.startswith(".")]
        for path in sorted(inside):
            # A link may lead out of the folders that were named.
            if path.name not in SKIPPED and not path.is_symlink():
                yield from _runs_in(path, depth - 1)
