"""One run's folder, as the viewer reads it: state, config, metrics, episodes, token strings; also a verifier's run."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

from coterie.episode_files import EpisodeFile, Row, episode_paths, step_of
from coterie.files import complete_lines, flat

KINDS = ("episodes", "eval", "counterfactuals")
OPEN_FILES = 8  # whose indexes are kept
RECENT = 40  # steps of the curve in the list
HELD_OUT = ("eval/reward", "eval/auc_within")  # what a team and a verifier are measured by


class RunFolder:
    """Reads a run that may still be written to. Missing files and fields are shown as absent."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._files = lru_cache(maxsize=OPEN_FILES)(lambda path, modified: EpisodeFile(path))
        self._latest: tuple[int, Row] = (-2, {})  # size of metrics.jsonl, and the progress
        self._strings: tuple[int, dict[str, dict[int, Any]]] = (-1, {})  # size of tokens.jsonl, and its tables

    def _own(self, name: str) -> Path:
        """A file of the run. Links that leave its folder are ignored: a run copied from elsewhere could have one."""
        path = self.path / name
        return path if path.resolve().is_relative_to(self.path.resolve()) else Path(os.devnull)

    @property
    def metrics_path(self) -> Path:
        return self._own("metrics.jsonl")

    def state(self) -> Row:
        """status.json; the state is `unknown` without that file, and `died` if the run's process has ended."""
        status = _json(self._own("status.json"))
        if not isinstance(status, dict):
            return {"state": "unknown"}
        if status.get("state") == "running" and _is_gone(status):
            return status | {"state": "died", "cause": "its process ended abruptly: killed, or out of memory"}
        return status

    def summary(self) -> Row:
        """The run's line in the list."""
        config = self.config()
        verifier = "answers_sha256" in config
        names = {key: config.get(f"{key}.name", config.get(key)) for key in ("workflow", "algorithm")}
        kinds = [kind for kind in KINDS if self.paths(kind)]
        known = {"steps": config.get("steps"), "kinds": kinds, "verifier": verifier}
        return self.state() | self._progress() | known | ({"workflow": "verifier"} if verifier else names)

    def _progress(self) -> Row:
        """How far the run is; metrics.jsonl is read again only if it has grown."""
        path = self.metrics_path
        size = path.stat().st_size if path.is_file() else -1
        if size != self._latest[0]:
            rows = self.metrics()
            evaluated = [value for row in rows for key in HELD_OUT if (value := row.get(key)) is not None]
            progress = {
                "step": max((row["step"] for row in rows), default=0),
                "time": rows[-1].get("time") if rows else None,
                "evaluations": [evaluated[0], evaluated[-1]] if evaluated else None,
                "rewards": [row["reward"] for row in rows if row.get("reward") is not None][-RECENT:],
            }
            self._latest = (size, progress)
        return self._latest[1]

    def config(self) -> dict[str, Any]:
        """The config by dotted keys; empty if it cannot be read."""
        tree = self._tree()
        return {key: _scalar(value) for key, value in flat(tree).items()} if tree else {}

    def names(self, section: str) -> list[str]:
        """The roles or policies of the config."""
        named = self._tree().get(section)
        return list(map(str, named)) if isinstance(named, dict) else []

    def _tree(self) -> dict[str, Any]:
        try:
            tree = yaml.safe_load(self._own("config.yaml").read_text(errors="replace"))
        except (OSError, yaml.YAMLError, ValueError, RecursionError):
            return {}
        return tree if isinstance(tree, dict) else {}

    def metrics(self) -> list[Row]:
        """The rows of metrics.jsonl; NaN and infinity, which JSON does not have, are null."""
        rows = (_parsed(line) for line in complete_lines(self.metrics_path))
        return [row for row in rows if isinstance(row, dict) and isinstance(row.get("step"), int)]

    def reliability(self) -> list[Row]:
        """A verifier's calibration at each evaluation: the share of right answers by score."""
        rows = (_parsed(line) for line in complete_lines(self._own("reliability.jsonl")))
        return [row for row in rows if isinstance(row, dict)]

    def steps(self, kind: str) -> list[int]:
        return list(self.paths(kind))

    def paths(self, kind: str) -> dict[int, Path]:
        """The episode files by step."""
        found = episode_paths(self.path / kind) if kind in KINDS else []
        return {step_of(path): path for path in found if self._own(f"{kind}/{path.name}") == path}

    def file(self, kind: str, step: int) -> EpisodeFile:
        """The episodes of a step; KeyError if there are none."""
        paths = self.paths(kind)
        if step not in paths:
            raise KeyError(f"{kind} of step {step}")
        return self.open(paths[step])

    def open(self, path: Path) -> EpisodeFile:
        return self._files(path, path.stat().st_mtime_ns)

    def token_texts(self, policy: str, ids: Sequence[int]) -> list[str] | None:
        """The text of each token; None if the run stored no strings. If several tokens make up a character, the first
        has the text and the others are empty."""
        table = self._tables().get(policy)
        return None if table is None else _joined([table.get(id, "\ufffd") for id in ids])

    def _tables(self) -> dict[str, dict[int, Any]]:
        path = self._own("tokens.jsonl")
        size = path.stat().st_size if path.is_file() else -1
        if size != self._strings[0]:
            tables: dict[str, dict[int, Any]] = {}
            for row in filter(None, map(_parsed, complete_lines(path))):
                strings = {int(id): text for id, text in row["strings"].items()}
                for policy in row["policies"]:
                    tables.setdefault(policy, {}).update(strings)
            self._strings = (size, tables)
        return self._strings[1]


def _json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(errors="replace"), parse_constant=_no_number)
    except (OSError, ValueError):
        return None


def _parsed(line: bytes) -> Any:
    try:
        return json.loads(line, parse_constant=_no_number)
    except ValueError:
        return None


def _no_number(name: str) -> None:
    """NaN and infinities become null."""


def _is_gone(status: Row) -> bool:
    """True if the process of a run on this machine has ended."""
    if status.get("host") != socket.gethostname() or not isinstance(status.get("pid"), int):
        return False
    try:
        os.kill(status["pid"], 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        pass
    return False


def _scalar(value: Any) -> Any:
    """A value of the config as the page shows it: lists as JSON."""
    return value if value is None or isinstance(value, bool | int | float | str) else json.dumps(value, default=str)


def _joined(parts: Sequence[str | list[int]]) -> list[str]:
    """Token texts; consecutive tokens that are parts of a character, given as bytes, are decoded together."""
    texts = ["" if isinstance(part, list) else part for part in parts]
    start, waiting = 0, b""
    for i, part in enumerate([*parts, ""]):
        if isinstance(part, list):
            start, waiting = (start, waiting) if waiting else (i, b"")
            waiting += bytes(part)
        elif waiting:
            texts[start], waiting = waiting.decode(errors="replace"), b""
    return texts
