"""Train a team from Python."""

from __future__ import annotations

import hashlib
import inspect
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coterie import api_config
from coterie.cli.commands import free
from coterie.config import ConfigError
from coterie.config.config import of, plain
from coterie.config.functions import named
from coterie.files import write_atomic
from coterie.training.build import build
from coterie.training.loop import train
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
    when the run is resumed; so must functions among `workflow_args`, for options that are declared `Callable`.
    `config` is a recipe's path, a graph's, or a mapping like a recipe; what is given here goes over it.
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
            files = self._files(train_dataset, val_dataset)
            if not isinstance(config, Mapping) and api_config.is_graph_file(Path(config)):
                api_config.must_fit_graph(workflow, workflow_args, files)
                tree, problems, folder, overrides = api_config.graph(Path(config), files or {}, overrides)
            else:
                tree, problems, folder = api_config.tree(config)
                tree["env"] = (
                    api_config.part("env", train_dataset) if files is None else api_config.with_files(tree, files)
                )
            self._put(tree, workflow, workflow_args or {}, reward)
            self.config = of(tree, problems, folder, overrides)

    def train(self, console: bool = True) -> Trained:
        """Train to the last step; the run's folder is new."""
        with free(self.out / self.config.name) as folder:
            run = build(self.config, folder, console=console)
            try:
                train(run)
            finally:
                run.log.close()
        *_, last = (run.folder / "metrics.jsonl").read_text().splitlines()
        told = {name.removeprefix("eval/"): value for name, value in json.loads(last).items() if name[:5] == "eval/"}
        return Trained(run.folder, told)

    def _put(self, tree: dict[str, Any], workflow: Any, arguments: Mapping[str, Any], reward: Any) -> None:
        if workflow is not None:
            tree["workflow"] = api_config.part("workflow", workflow)
        if arguments:
            tree["workflow"] = {**api_config.long(tree, "workflow"), **plain(named(arguments, "workflow_args"))}
        if reward is not None:
            tree["reward"] = api_config.part("reward", reward)

    def _files(self, training: Any, testing: Any) -> dict[str, str] | None:
        """The files of both splits, as far as they are given; None where an environment is."""
        if not isinstance(training, Env) and not inspect.isclass(training):
            return {
                name: self._file(rows) for name, rows in (("train", training), ("test", testing)) if rows is not None
            }
        if testing is not None:
            raise ConfigError("val_dataset: the environment that is the train_dataset has its own held-out tasks")
        return None

    def _file(self, rows: str | Path | Sequence[Mapping[str, Any]]) -> str:
        """A dataset as a file. Rows are written to one that their content names, so that a resumed run finds it."""
        if isinstance(rows, str | Path):
            return str(rows)
        text = "".join(json.dumps(dict(row), ensure_ascii=False) + "\n" for row in rows)
        file = self.out / "data" / f"{hashlib.sha256(text.encode()).hexdigest()[:16]}.jsonl"
        file.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(file, text)
        return str(file.resolve())


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
