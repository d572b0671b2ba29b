"""The Python API: train a team without the command line."""

from __future__ import annotations

import hashlib
import inspect
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coterie import api_config
from coterie.config import ConfigError
from coterie.config.load import from_tree, to_plain
from coterie.config.registry import replace_functions
from coterie.data.tables import rows_of
from coterie.episode_files import episode_paths, step_of
from coterie.errors import UserError
from coterie.files import read_rows, write_atomic
from coterie.types import Env, Episode, Metrics

if TYPE_CHECKING:
    from coterie.rollout.playable import PlayableTeam


@dataclass(frozen=True)
class Trained:
    """A training run and its results; `Trained("runs/demo")` reads any run."""

    folder: Path  # for `coterie eval FOLDER` and `coterie train --resume FOLDER`

    def __init__(self, folder: str | Path) -> None:
        object.__setattr__(self, "folder", Path(folder))
        if not self.folder.is_dir():
            raise UserError(f"{self.folder}: there is no such run")

    @property
    def metrics(self) -> Metrics:
        """The metrics of the last evaluation, without the prefix `eval/`; empty if there was none."""
        evaluations = [row for row in self.history() if any(name.startswith("eval/") for name in row)]
        last = evaluations[-1] if evaluations else {}
        return {name.removeprefix("eval/"): value for name, value in last.items() if name.startswith("eval/")}

    def history(self) -> list[dict[str, Any]]:
        """The rows of metrics.jsonl, one per step and one per evaluation: `pandas.DataFrame(trained.history())`."""
        return read_rows(self.folder / "metrics.jsonl")

    def episodes(self, step: int) -> list[Episode]:
        """The episodes of a step, from 1 on: every turn with its token ids, log-probs, credit and advantages."""
        from coterie.episode_rows import read_episodes  # imported here, as in `AgentTrainer.train`

        paths = {step_of(path): path for path in episode_paths(self.folder / "episodes")}
        if step not in paths:
            known = ", ".join(map(str, paths))
            raise UserError(f"{self.folder} has no episodes of step {step}; it has those of {known}")
        return read_episodes(paths[step])

    def team(self, checkpoint: str | None = None) -> PlayableTeam:
        """The trained team, to play tasks: `await trained.team().play(Task("mine", "3 + 5", None))`.

        `checkpoint`: latest, best or a step's number; by default latest.
        """
        from coterie.training.build import for_inference

        return for_inference(self.folder, checkpoint)


def train(config: str | Path | Mapping[str, Any], *overrides: str, out: str | Path | None = None) -> Trained:
    """Train the team of a recipe: `train("recipes/demo.yaml", "steps=2")`."""
    return AgentTrainer(config=config, overrides=overrides, out=out).train()


class AgentTrainer:
    """Trains a team. The arguments override the config, which is a recipe's path, a graph's, or a mapping.

    `workflow` (or `workflow_class`) is a name, a class or an instance; `reward` a name or a function; a dataset is a
    file, a list of rows with question and answer, a table of pandas, pyarrow or `datasets`, or, for both splits, an
    environment. Without `val_dataset`, and without held-out tasks in the config, there is no evaluation. Your own
    classes and functions, also those in `workflow_args`, must be at the top level of a file, and this call under
    `if __name__ == "__main__":`, because the file is imported again: by grading processes, and on resume.

    `reward_function` among the `workflow_args` of a workflow without such an option is the run's reward, called as in
    rLLM: `(row, answer)`. `agent_class` and `env_class`, with `agent_args` and `env_args`, are rLLM's: one agent that
    talks to an environment with `reset` and `step`.
    """

    def __init__(
        self,
        *,
        config: str | Path | Mapping[str, Any],
        workflow: Any = None,
        workflow_class: Any = None,
        workflow_args: Mapping[str, Any] | None = None,
        agent_class: type | None = None,
        agent_args: Mapping[str, Any] | None = None,
        env_class: type | None = None,
        env_args: Mapping[str, Any] | None = None,
        train_dataset: Any = None,
        val_dataset: Any = None,
        reward: Any = None,
        overrides: Sequence[str] = (),  # as on the command line: "steps=2"
        out: str | Path | None = None,  # the parent of the run's folder, by default runs
    ) -> None:
        self.out = Path(out or "runs")
        api_config.check_types(config, overrides)
        workflow = api_config.one_workflow(workflow, workflow_class, agent_class, env_class)
        with _not_nested():
            files = self._files(train_dataset, val_dataset)
            if not isinstance(config, Mapping) and api_config.is_graph_file(Path(config)):
                api_config.check_graph_arguments(workflow, workflow_args, files)
                tree, problems, folder, overrides = api_config.graph(Path(config), files or {}, overrides)
            else:
                tree, problems, folder = api_config.tree(config)
                tree["env"] = (
                    api_config.part("env", train_dataset)
                    if files is None
                    else api_config.with_files(tree, files, workflow)
                )
            if files is not None and "test" not in files:
                api_config.without_evaluation(tree, files)
            if agent_class is not None:
                workflow_args = api_config.agent_options(agent_class, env_class, agent_args, env_args, workflow_args)
            self._override(tree, workflow, workflow_args or {}, reward)
            self.config = from_tree(tree, problems, folder, overrides)
        from coterie.cli.commands import run_folder  # imported here, as in `train`

        self.run_folder = run_folder(self.config, None if out is None else Path(out))
        if self.config.resume:
            raise ConfigError("resume: a trainer starts a new run; `coterie train --resume FOLDER` resumes one")

    def train(self, console: bool = True) -> Trained:
        """Train to the last step in a new run folder."""
        # Imported here: a grading process imports the user's file, and with it this module, but not the models library.
        from coterie.cli.commands import new_run_folder
        from coterie.cli.run import session

        with new_run_folder(self.run_folder) as folder, session(self.config) as (build, train):
            run = build(self.config, folder, console=console)
            try:
                train(run)
            finally:
                run.log.close()
        return Trained(run.folder)

    def _override(self, tree: dict[str, Any], workflow: Any, arguments: Mapping[str, Any], reward: Any) -> None:
        """Write the arguments into the config's tree."""
        if workflow is not None:
            tree["workflow"] = api_config.part("workflow", workflow)
        if "reward_function" in arguments and not api_config.has_option(tree, "reward_function"):
            arguments = dict(arguments)
            tree["reward"] = api_config.row_reward(arguments.pop("reward_function"))
            if tree["reward"]["name"] == "row_function" and api_config.has_option(tree, "program_reward"):
                arguments.setdefault("program_reward", "reward")  # its default, tests, would ignore this reward
        if arguments:
            own = api_config.part_tree(tree, "workflow")
            tree["workflow"] = {**own, **to_plain(replace_functions(arguments, "workflow_args"))}
        if reward is not None:
            tree["reward"] = api_config.part("reward", reward)

    def _files(self, training: Any, testing: Any) -> dict[str, str] | None:
        """The dataset files by split, as far as given; None if the dataset is an environment."""
        if not isinstance(training, Env) and not inspect.isclass(training):
            given = {"train": training, "test": testing}
            names = {"train": "train_dataset", "test": "val_dataset"}
            return {split: self._file(rows, names[split]) for split, rows in given.items() if rows is not None}
        if testing is not None:
            raise ConfigError("val_dataset: the environment given as train_dataset has its own held-out tasks")
        return None

    def _file(self, rows: Any, owner: str) -> str:
        """A dataset as a file. Rows are written to a file named by their hash, so that a resumed run finds it."""
        if isinstance(rows, str | Path):
            return str(rows)
        text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows_of(rows, owner))
        file = self.out / "data" / f"{hashlib.sha256(text.encode()).hexdigest()[:16]}.jsonl"
        file.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(file, text)
        return str(file.resolve())


_constructing: list[bool] = []


@contextmanager
def _not_nested() -> Iterator[None]:
    """Reject a trainer that starts while another one imports its file."""
    if _constructing:
        guard = 'put it under if __name__ == "__main__":'
        raise ConfigError(f"an AgentTrainer was created while its own file was imported: {guard}")
    _constructing.append(True)
    try:
        yield
    finally:
        _constructing.clear()
