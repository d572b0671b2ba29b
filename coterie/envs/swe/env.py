"""Software engineering tasks, as in SWE-bench: an issue, a repository, and tests that fail until it is fixed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar

from coterie.data.files import read, read_prepared, source_of
from coterie.data.r2egym import R2EGYM
from coterie.data.row import Raw, Row
from coterie.data.swe import SWE, parse
from coterie.data.swebench import SWEBENCH
from coterie.envs.swe.checkout import Checkout, SuiteResult, files_at
from coterie.envs.swe.edits import EditError
from coterie.envs.swe.layouts import swebench_project
from coterie.limits import Count, Positive
from coterie.types import Episode, Split, Task

CANNOT_RUN = {
    R2EGYM.name: "run after `coterie data prepare r2egym --repositories PLACE`, which needs clones of their projects"
}


@dataclass(frozen=True)
class Swe:
    """Software engineering tasks: issues of your own projects, or of SWE-bench and R2E-Gym; use `reward: native`.

    Prepare SWE-bench and R2E-Gym with `coterie data prepare --repositories`; SWE-bench rows also work as they are if
    the option `repositories` names a folder of clones.

    A row of yours has `issue`, `repository` (a folder, relative to the file) and `tests` (commands that fail until the
    issue is fixed); optionally `id`, `commit`, `test_files` (path → text, added before the tests run) and `patch`, the
    reference fix. The answer is a diff. Its reward is 1 if all tests pass, and 0 if it makes them time out; if they are
    too slow without it as well, the episode fails.
    """

    needs_sandbox: ClassVar[bool] = True
    own_deadline: ClassVar[bool] = True  # `seconds`, not rollout.score_deadline, limits the tests

    train: Path  # training issues, jsonl or Parquet
    test: Path | None = None  # held-out issues, for evaluation
    repositories: Path | None = None  # clones for SWE-bench rows: astropy/astropy in astropy__astropy
    seconds: Positive = 60.0  # seconds for all tests of a change
    limit: Count | None = None  # only the first rows of each file; null: all
    _results: dict[str, SuiteResult] = field(default_factory=dict, init=False, repr=False, compare=False)

    def problems(self, config: Any) -> Iterator[tuple[str, str]]:
        """Conflicts with the rest of the config, as (dotted key, message)."""
        if config.rollout.score_deadline != type(config.rollout)().score_deadline:
            yield "rollout.score_deadline", "has no effect: env.seconds limits how long the tests of a change may take"

    def tasks(self, split: Split) -> list[Task]:
        path = self.train if split == "train" else self.test
        if path is None:
            raise ValueError("test: evaluation needs held-out tasks; name a file")
        return list(islice(self._tasks(path), self.limit))

    def open(self, task: Task) -> Checkout:
        project, name = task.meta, json.dumps(dict(task.meta), sort_keys=True)
        files = files_at(Path(project["repository"]), project["commit"])
        tests, guards, patch = project["tests"], project["guards"], task.answer or None
        checkout = Checkout(files, tests, project["test_files"], guards, self.seconds, patch, name, self._results)
        return checkout.with_test_patch(project["test_patch"])

    async def score(self, episode: Episode) -> None:
        """1 if all tests pass. Results that a workflow has computed are reused."""
        checkout = self.open(episode.task)
        try:
            tested = await checkout.test(checkout.edited(str(episode.answer)))
        except EditError:  # the answer has no valid edit
            episode.reward = 0.0
        else:
            episode.reward = float(tested.passed == tested.total)
        episode.metrics["accuracy"] = episode.reward

    def _tasks(self, path: Path) -> Iterator[Task]:
        source = source_of(path)
        if source not in (None, SWE.name, SWEBENCH.name):
            raise ValueError(f"{path} holds {source}, whose rows {CANNOT_RUN.get(source, 'have no projects')}")
        if source is not None:
            to_task = self._of_swebench if source == SWEBENCH.name else user_task
            yield from map(to_task, read_prepared(path))
            return
        for number, raw in read(path):
            row = self._read(path, number, raw)
            if isinstance(row, str):
                raise ValueError(f"{path}, row {number}: {row}")
            yield row

    def _read(self, path: Path, number: int, raw: Raw) -> Task | str:
        """A task from a row of any format, or what is wrong with the row."""
        if not isinstance(R2EGYM.parse(raw, ""), str):
            return f"rows of {R2EGYM.name} {CANNOT_RUN[R2EGYM.name]}"
        swebench = "instance_id" in raw
        row = SWEBENCH.parse(raw, "") if swebench else parse(raw, f"{path.stem}/{number}")
        if isinstance(row, str):
            return row
        return self._of_swebench(row) if swebench else user_task(row, path.parent)

    def _of_swebench(self, row: Row) -> Task:
        if self.repositories is None:
            raise ValueError("repositories: SWE-bench rows need a folder with clones of their projects")
        repository = self.repositories / row.meta["repo"].replace("/", "__")
        return Task(row.id, row.question, row.answer, swebench_project(row, repository))


def user_task(row: Row, folder: Path = Path()) -> Task:
    """A task from a user's row; a relative repository is resolved from `folder`."""
    repository = str((folder / row.meta["repository"]).resolve())
    project = {"guards": [], "test_patch": "", **row.meta, "repository": repository}
    return Task(row.id, row.question, row.answer, project)
