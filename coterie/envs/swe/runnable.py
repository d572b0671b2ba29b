"""Prepares the rows of SWE-bench and R2E-Gym that run on this machine: with a clone, and tests that the known fix
passes."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from coterie.data.r2egym import R2EGYM
from coterie.data.row import Row, Source
from coterie.data.swebench import SWEBENCH
from coterie.envs.swe.checkout import Checkout, files_at
from coterie.envs.swe.edits import EditError
from coterie.envs.swe.layouts import R2E_OWNERS, r2e_fix, r2e_project, swebench_project
from coterie.rewards import GraderTimeout

SECONDS = 300.0  # for the tests of one row
CLONES = Path("data/repositories")  # where projects are cloned to, from a URL


@dataclass(frozen=True)
class Repositories:
    """Clones of projects: a folder with one per project, or a URL that `owner/name.git` is appended to.

    In a folder the project astropy/astropy is astropy__astropy, astropy/astropy or astropy, each also with `.git`.
    """

    place: str
    clones: Path = CLONES

    @property
    def is_url(self) -> bool:
        return "://" in self.place

    def find(self, project: str) -> Path:
        """The clone of `owner/name`, made if it is at a URL."""
        return self._clone(project) if self.is_url else self._local(project)

    def _local(self, project: str) -> Path:
        names = (project.replace("/", "__"), project, project.rpartition("/")[2])
        folders = [Path(self.place) / f"{name}{end}" for name in names for end in ("", ".git")]
        if found := next((folder for folder in folders if folder.is_dir()), None):
            return found
        raise ValueError(f"no clone of {project} in {self.place}")

    def _clone(self, project: str) -> Path:
        target = self.clones / f"{project.replace('/', '__')}.git"
        if not target.is_dir():
            address = f"{self.place.rstrip('/')}/{project}.git"
            words = ["git", "clone", "--bare", "--quiet", address, str(target)]
            ran = subprocess.run(words, capture_output=True, stdin=subprocess.DEVNULL, timeout=3600)
            if ran.returncode:
                raise ValueError(f"{address} cannot be cloned")
        return target


def runnable_source(source: Source, place: str) -> Source:
    """The source with rows for `env: swe`; a row that cannot be run is rejected, with the reason."""
    if source not in (SWEBENCH, R2EGYM):
        raise ValueError(f"--repositories {place}: has no effect on {source.name}; swebench and r2egym need clones")
    return replace(source, finish=partial(run_rows, source.name, Repositories(place)))


def run_rows(layout: str, repositories: Repositories, rows: Sequence[Row]) -> list[Row | str]:
    return [asyncio.run(run_row(layout, repositories, row)) for row in rows]


async def run_row(layout: str, repositories: Repositories, row: Row) -> Row | str:
    """The row with its project, or why it cannot be run: the tests must fail before the known fix and pass after it.

    Reasons contain no details of the row, so that equal ones can be counted.
    """
    try:
        prepared = _project(layout, repositories, row)
        checkout = checkout_of(prepared)
        fixed = await checkout.test(checkout.edited(prepared.answer or ""))
        broken = await checkout.test(checkout.texts)
    except (EditError, GraderTimeout) as error:
        return f"the known fix cannot be tested: {str(error).splitlines()[0][:100]}"
    except ValueError as error:
        return str(error)
    if fixed.passed < fixed.total:
        return "its tests do not pass with the known fix here; they may need packages, or containers"
    return "its tests pass before the fix" if broken.passed == broken.total else prepared


def _project(layout: str, repositories: Repositories, row: Row) -> Row:
    if layout == SWEBENCH.name:
        repository = repositories.find(row.meta["repo"])
        return replace(row, meta=swebench_project(row, repository))
    name = row.meta["repo_name"]
    repository = repositories.find(R2E_OWNERS.get(name, name))
    return replace(row, answer=r2e_fix(row, repository), meta=r2e_project(row, repository))


def checkout_of(row: Row) -> Checkout:
    project = row.meta
    files = files_at(Path(project["repository"]), project["commit"])
    checkout = Checkout(files, project["tests"], project["test_files"], project["guards"], SECONDS)
    return checkout.with_test_patch(project["test_patch"])
