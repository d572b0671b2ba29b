"""Tasks of a run: loading and checking them, and the stream of shuffled epochs."""

from __future__ import annotations

import random
import sys
from collections.abc import Sequence
from dataclasses import replace
from math import ceil
from pathlib import Path

from coterie.config import Config
from coterie.config.registry import line_in_users_file
from coterie.seeds import stable_hash
from coterie.training.models import config_errors
from coterie.types import Env, Split, Task


class TaskStream:
    """An endless stream of epochs, each shuffled, or all in the order of the tasks.

    It has no state: the tasks of a step depend only on the seed.
    """

    def __init__(self, tasks: Sequence[Task], count: int, seed: int, shuffle: bool = True) -> None:
        """`count`: tasks per step."""
        if not tasks:
            raise ValueError("the environment has no training tasks")
        self.tasks, self.count, self.seed, self.shuffle = tasks, count, seed, shuffle
        self.shuffled: tuple[int, list[int]] = (-1, [])  # the epoch and its permutation

    def at_step(self, step: int) -> list[Task]:
        """The tasks of a step, counted from 0."""
        return [self._at(i) for i in range(step * self.count, (step + 1) * self.count)]

    def _at(self, i: int) -> Task:
        epoch, place = divmod(i, len(self.tasks))
        return self.tasks[self._order(epoch)[place]]

    def _order(self, epoch: int) -> list[int]:
        if self.shuffled[0] != epoch:
            order = list(range(len(self.tasks)))
            if self.shuffle:
                random.Random(stable_hash(self.seed, "tasks", epoch)).shuffle(order)
            self.shuffled = epoch, order
        return self.shuffled[1]


def with_steps(config: Config, tasks: int) -> Config:
    """The config with `steps` computed from `epochs`. The last step is filled up from one more epoch, so that all steps
    have the same number of tasks."""
    if config.epochs is None:
        return config
    return replace(config, steps=ceil(config.epochs * tasks / config.tasks_per_step))


class NotTasks(ValueError):
    """`Env.tasks` did not return a list of tasks with unique ids."""


def load_tasks(env: Env, split: Split, config: Config) -> Sequence[Task]:
    """An environment's tasks; its errors are reported with the key and the line that names its files."""
    options = config.env.options
    named = split in options and options[split] is not None
    file = f" in {options[split]}" if isinstance(options.get(split), Path | str) else ""
    with config_errors(config, ("env",), options, ("env", split) if named else ("env",)):
        try:
            return _checked_tasks(env, split, file)
        except (Exception, SystemExit) as error:
            if (where := line_in_users_file(type(env), error)) is None or isinstance(error, NotTasks):
                raise
            raise ValueError(f"{where}: {type(error).__name__}: {error}") from error


def _checked_tasks(env: Env, split: Split, file: str) -> Sequence[Task]:
    tasks, name = env.tasks(split), type(env).__name__
    if not isinstance(tasks, Sequence):
        raise NotTasks(f"{name}.tasks returned a {type(tasks).__name__}, expected a list of Task")
    if not tasks:
        raise NotTasks(f"{name} has no {'training' if split == 'train' else 'held-out'} tasks{file}")
    others = [task for task in tasks if not isinstance(task, Task)]
    if others:
        raise NotTasks(f"{name}.tasks returned a list of {type(others[0]).__name__}, expected Task")
    first: dict[str, int] = {}
    for number, task in enumerate(tasks):
        if first.setdefault(task.id, number) != number:
            both = f"tasks {first[task.id]} and {number} of {split}, counted from 0, have the same id {task.id!r}"
            raise NotTasks(f"{both}; ids must be unique: groups and seeds depend on them")
    return tasks


def warn_about_tasks(config: Config, training: Sequence[Task], held_out: Sequence[Task]) -> None:
    """Warnings, not errors: a short trial of a long recipe, like `steps=2`, is common."""
    warnings = [*_overlap(held_out, training)]
    if config.eval.tasks == 0:
        warnings.append("eval.tasks=0: there is no evaluation, so the held-out reward of this run is not known")
    if config.tasks_per_step > len(training):
        repeats = f"there are only {len(training)} training tasks, so a step has some of them more than once"
        warnings.append(f"tasks_per_step={config.tasks_per_step}: {repeats}")
    if config.eval.every > config.steps:
        first = "" if config.eval.before_training is False else "before the first step and "
        end = f"the run ends at steps={config.steps}, so it is evaluated only {first}after the last"
        warnings.append(f"eval.every={config.eval.every}: {end}")
    for warning in warnings:
        print(warning, file=sys.stderr)


def _overlap(held_out: Sequence[Task], training: Sequence[Task]) -> list[str]:
    """A warning if held-out tasks are trained on. Tasks without an answer are games, which are always the same."""
    prompts = {task.prompt for task in held_out if task.answer is not None}
    seen = {_content(task) for task in training if task.prompt in prompts} if prompts else set()
    shared = [task.id for task in held_out if _content(task) in seen] if seen else []
    why = "so the evaluation measures memorization; see env.train and env.test"
    count = f"{len(shared)} of {len(held_out)} held-out tasks are also trained on"
    return [f"{count}, for example {shared[0]}, {why}"] if shared else []


def _content(task: Task) -> str:
    """Everything but the id."""
    return repr((task.prompt, task.answer, task.meta))
