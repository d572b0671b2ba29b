"""Train a team from Python."""

from __future__ import annotations

import copy
import hashlib
import inspect
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coterie.build import build
from coterie.commands import free
from coterie.config import ConfigError, yamltree
from coterie.config.config import of, plain
from coterie.config.problems import Problems, Sources
from coterie.config.registry import BUILTIN, Kind
from coterie.files import write_atomic
from coterie.train import train
from coterie.types import Env, Metrics


@dataclass(frozen=True)
class Trained:
    """What a training left behind."""

    folder: Path  # `coterie eval FOLDER` and `coterie train --resume FOLDER` go on from here
    metrics: Metrics  # of the last evaluation


class AgentTrainer:
    """Trains a team: its workflow and data, and all else that a recipe says.

    `workflow` is a name, a class or an instance; `reward` a name or a function; a dataset is a file, a list of rows
    with question and answer, or, for both splits, an environment. What is yours must stand at the top of a file, and
    this call under `if __name__ == "__main__":`, because the file is read again: by processes that grade answers, and
    when the run is resumed. `config` is a recipe's path or a mapping like one; what is given here goes over it.
    """

    def __init__(
        self,
        *,
        config: str | Path | Mapping[str, Any],
        workflow: Any = None,
        workflow_args: Mapping[str, Any] | None = None,
        train_dataset: Any = None,
        val_dataset: Any = None,
        reward: Any = None,
        overrides: Sequence[str] = (),  # as on the command line: "steps=2"
        out: str | Path = "runs",
    ) -> None:
        self.out = Path(out)
        with _only_one():
            tree, problems, folder = _tree(config)
            self._put(tree, workflow, workflow_args or {}, reward)
            self._put_data(tree, train_dataset, val_dataset)
            self.config = of(tree, problems, folder, overrides)

    def train(self, console: bool = True) -> Trained:
        """Train to the last step; the run's folder is new."""
        run = build(self.config, free(self.out / self.config.name), console=console)
        try:
            train(run)
        finally:
            run.log.close()
        *_, last = (run.folder / "metrics.jsonl").read_text().splitlines()
        told = {name.removeprefix("eval/"): value for name, value in json.loads(last).items() if name[:5] == "eval/"}
        return Trained(run.folder, told)

    def _put(self, tree: dict[str, Any], workflow: Any, arguments: Mapping[str, Any], reward: Any) -> None:
        if workflow is not None:
            tree["workflow"] = _part("workflow", workflow)
        if arguments:
            tree["workflow"] = {**_long(tree, "workflow"), **plain(arguments)}
        if reward is not None:
            tree["reward"] = _part("reward", reward)

    def _put_data(self, tree: dict[str, Any], training: Any, testing: Any) -> None:
        """An environment, or files for the one that the config names; `rows` if it names none."""
        if not isinstance(training, Env) and not inspect.isclass(training):
            files = {
                name: self._file(rows) for name, rows in (("train", training), ("test", testing)) if rows is not None
            }
            tree["env"] = {**(_long(tree, "env") if "env" in tree else {"name": "rows"}), **files}
        elif testing is None:
            tree["env"] = _part("env", training)
        else:
            raise ConfigError("val_dataset: the environment that is the train_dataset has its own held-out tasks")

    def _file(self, rows: str | Path | Sequence[Mapping[str, Any]]) -> str:
        """A dataset as a file. Rows are written to one that their content names, so that a resumed run finds it."""
        if isinstance(rows, str | Path):
            return str(rows)
        text = "".join(json.dumps(dict(row), ensure_ascii=False) + "\n" for row in rows)
        file = self.out / "data" / f"{hashlib.sha256(text.encode()).hexdigest()[:16]}.jsonl"
        file.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(file, text)
        return str(file.resolve())


def _tree(config: str | Path | Mapping[str, Any]) -> tuple[dict[str, Any], Problems, Path]:
    if isinstance(config, Mapping):
        return copy.deepcopy(dict(config)), Problems(Sources("the config given to AgentTrainer")), Path()
    path = Path(config)
    if not path.is_file():
        raise ConfigError(f"{path}: there is no such file")
    problems = Problems(Sources(str(path)))
    tree = yamltree.read(path.read_text("utf-8"), problems)
    if not isinstance(tree, dict):
        raise ConfigError(f"{path}: a config is a mapping of keys to values")
    return {"name": path.stem, **tree}, problems, path.parent


def _long(tree: Mapping[str, Any], kind: str) -> dict[str, Any]:
    """A part of the config as a mapping, also where only its name is given."""
    if kind not in tree:
        raise ConfigError(f"{kind}_args: have no effect without a {kind}")
    part = tree[kind]
    return {"name": part} if isinstance(part, str) else dict(part)


def _part(kind: Kind, given: Any) -> dict[str, Any]:
    """A name, a class, a function or an instance, as a config says it."""
    if isinstance(given, str):
        return {"name": given}
    if inspect.isclass(given) or inspect.isfunction(given):
        return {"name": _name(kind, given)}
    options = plain(given)
    if not isinstance(options, dict):
        raise ConfigError(f"{kind}: {type(given).__name__} must be a dataclass, so that a run can write it down")
    return {"name": _name(kind, type(given)), **options}


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


_reading: list[bool] = []


@contextmanager
def _only_one() -> Iterator[None]:
    """A file whose parts are read must not start a training of its own."""
    if _reading:
        raise ConfigError(
            'an AgentTrainer was started while its file was read: put it under if __name__ == "__main__":'
        )
    _reading.append(True)
    try:
        yield
    finally:
        _reading.clear()
