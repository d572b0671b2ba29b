"""Issues of real projects: a repository, an issue text, and tests that fail until it is closed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from coterie.data.files import is_prepared, read, read_prepared
from coterie.data.row import Raw, Row, lacks
from coterie.data.swebench import parse as parse_swebench
from coterie.envs.checkout import Checkout, files_at
from coterie.types import Episode, Split, Task
from coterie.workflows.edits import EditError, edited


@dataclass(frozen=True)
class Swe:
    """Rows of your own projects, or of SWE-bench where `repositories` holds clones; `reward: native`.

    A row of yours has `issue`, `repository` (a folder, from the file's place) and `tests` (commands that fail until the
    issue is closed); and if you like `id`, `commit`, `test_files` (path → text, put in before the tests run) and
    `patch`. The answer is a diff; it is worth 1 when all tests pass.
    """

    train: Path
    test: Path | None = None
    repositories: Path | None = None  # of SWE-bench rows: astropy/astropy lies in astropy__astropy
    seconds: float = 60.0  # for one test command
    limit: int | None = None

    def tasks(self, split: Split) -> list[Task]:
        path = self.train if split == "train" else self.test
        if path is None:
            raise ValueError("env.test: held-out tasks are asked for, but no file is named")
        return list(islice(self._tasks(path), self.limit))

    def open(self, task: Task) -> Checkout:
        project = task.meta
        files = files_at(Path(project["repository"]), project["commit"])
        checkout = Checkout(files, project["tests"], project["test_files"], self.seconds)
        if project["test_patch"]:
            patched = edited(project["test_patch"], checkout.texts)
            changed = {path: text for path, text in patched.items() if checkout.texts.get(path) != text}
            return Checkout(files, project["tests"], changed, self.seconds)
        return checkout

    async def score(self, episode: Episode) -> None:
        checkout = self.open(episode.task)
        try:
            tested = await checkout.test(checkout.edited(str(episode.answer)))
        except EditError:  # an answer that changes nothing closes nothing
            episode.reward = 0.0
        else:
            episode.reward = float(tested.passed == tested.total)
        episode.metrics["right"] = episode.reward

    def _tasks(self, path: Path) -> Iterator[Task]:
        if is_prepared(path):
            yield from (self._of_swebench(row) for row in read_prepared(path))
            return
        for number, raw in read(path):
            row = parse_swebench(raw, "") if "instance_id" in raw else None
            problem = row if isinstance(row, str) else lacks(raw, "issue", "repository") if row is None else None
            if problem:
                raise ValueError(f"{path}, row {number}: {problem}")
            yield self._own(path, number, raw) if row is None else self._of_swebench(row)  # type: ignore[arg-type]

    def _own(self, path: Path, number: int, raw: Raw) -> Task:
        tests = [raw["tests"]] if isinstance(raw.get("tests"), str) else raw.get("tests")
        if not tests:
            raise ValueError(f"{path}, row {number}: tests are commands that fail until the issue is closed")
        repository = str((path.parent / raw["repository"]).resolve())
        name = str(raw.get("id", f"{path.stem}/{number}"))
        project = _project(repository, raw.get("commit"), tests, raw.get("test_files") or {}, "")
        return Task(name, raw["issue"], raw.get("patch"), project)

    def _of_swebench(self, row: Row) -> Task:
        if "FAIL_TO_PASS" not in row.meta:
            raise ValueError(f"{row.id}: these rows need the containers they came with; they can be read, not run")
        if self.repositories is None:
            raise ValueError("repositories: rows of SWE-bench need a folder with clones of their projects")
        repository = str((self.repositories / row.meta["repo"].replace("/", "__")).resolve())
        tests = [f"python -m pytest -q {name!r}" for name in row.meta["FAIL_TO_PASS"]]
        project = _project(repository, row.meta["base_commit"], tests, {}, row.meta["test_patch"])
        return Task(row.id, row.question, row.answer, project)


def _project(
    repository: str, commit: str | None, tests: list[str], test_files: Mapping[str, str], test_patch: str
) -> dict[str, Any]:
    return {
        "repository": repository,
        "commit": commit,
        "tests": tests,
        "test_files": test_files,
        "test_patch": test_patch,
    }
