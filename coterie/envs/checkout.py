"""A project to repair: its files, and its tests in the sandbox."""

from __future__ import annotations

import hashlib
import io
import json
import subprocess
import sys
import tarfile
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path, PurePosixPath

from coterie.sandbox import Limits, files_in, shared
from coterie.workflows.edits import EditError, edited

INSIDE, RUNNER = (Path(__file__).with_name(f"checkout_{name}.py").read_text() for name in ("inside", "tests"))
# What runs the tests; a file of such a name beside the project would run in its place.
RUNNERS = {"conftest", "pytest", "_pytest", "unittest", "sitecustomize", "usercustomize"}
# Where pytest finds its options. Nothing is installed before the tests, so these files matter to nobody else there.
SETTINGS = {"pytest.ini", ".pytest.ini", "pytest.toml", ".pytest.toml", "tox.ini", "setup.cfg", "pyproject.toml"}
OUTPUT = 2000  # letters of a test's output that are kept, the last ones
REMEMBERED = 1000  # results


@dataclass(frozen=True)
class Tested:
    """Which test commands passed, and what the others printed."""

    passed: int
    total: int
    output: str

    @property
    def fraction(self) -> float:
        return self.passed / self.total


@dataclass(frozen=True)
class Checkout:
    """The files of a project at one commit. `test_files` are put in before its tests run, and nobody sees them."""

    files: Mapping[str, bytes]
    tests: Sequence[str]  # commands that fail until the issue is closed, such as "python -m unittest tests.test_add"
    test_files: Mapping[str, str] = field(default_factory=dict)
    guards: Sequence[str] = ()  # commands that pass and must go on passing
    seconds: float = 60.0  # for all commands together
    name: str = ""  # what `results` know it by: all that its tests depend on, but for the change
    results: dict[str, Tested] = field(default_factory=dict)  # of changes that were tested before, by `_key`

    @cached_property
    def texts(self) -> dict[str, str]:
        """What can be read and edited."""
        found: dict[str, str] = {}
        for path, content in self.files.items():
            try:
                found[path] = content.decode()
            except UnicodeDecodeError:
                continue
        return found

    def edited(self, text: str) -> dict[str, str]:
        """Its texts after the changes that a model wrote down; the tests are not its to change."""
        changed = edited(text, self.texts)
        for path, content in changed.items():
            if is_test(path) and self.texts.get(path) != content:
                raise EditError(f"{path}: tests may not be changed")
            if path not in self.texts and hides_library(path, changed):
                raise EditError(f"{path}: a new file may not have the name of one of Python's own modules")
        return changed

    async def test(self, texts: Mapping[str, str]) -> Tested:
        """Run the test commands on the project with these texts in it. A change that breaks a guard passes none."""
        changes = {path: text for path, text in texts.items() if self.texts.get(path) != text}
        key = self._key(changes)
        if key not in self.results:
            tested = await self._tested(changes)
            while len(self.results) >= REMEMBERED:
                self.results.pop(next(iter(self.results)))
            self.results[key] = tested
        return self.results[key]

    def _key(self, changes: Mapping[str, str]) -> str:
        told = json.dumps([self.name, sorted(changes.items())])
        return hashlib.sha256(told.encode("utf-8", "replace")).hexdigest()

    async def _tested(self, changes: Mapping[str, str]) -> Tested:
        made = {path: text for path, text in changes.items() if PurePosixPath(path).name not in SETTINGS}
        files: dict[str, str | bytes] = {**self.files, **made, **self.test_files}
        failed, left = await self._failures(self.tests, files, self.seconds)
        if len(failed) == len(self.tests):  # then no guard matters
            return Tested(0, len(self.tests), "\n\n".join(failed))
        broken, _ = await self._failures(self.guards, files, left)
        passed = 0 if broken else len(self.tests) - len(failed)
        return Tested(passed, len(self.tests), "\n\n".join(failed + broken))

    async def _failures(
        self, commands: Sequence[str], files: Mapping[str, str | bytes], left: float
    ) -> tuple[list[str], float]:
        """What the commands said that did not pass, and how many seconds are left after them."""
        said: list[str] = []
        for command in commands:
            if left <= 0:
                said.append(f"$ {command}\n(no time was left for it)")
                continue
            request = json.dumps({"command": command, "runner": RUNNER})
            limits = Limits(seconds=left, processes=64)
            ran = await shared().run(INSIDE, stdin=request, files=files, limits=limits)
            left -= ran.seconds  # its own: how long it waited for a place does not count
            if not ran.ok:
                output = f"{ran.stdout}\n{ran.stderr}".strip()[-OUTPUT:]
                said.append(f"$ {command}\n{output}\n({ran.ended})")
        return said, left


def is_test(path: str) -> bool:
    """tests/…, test_add.py, add_test.py and conftest.py are the project's tests, and so is what runs them."""
    *folders, name = PurePosixPath(path).parts
    named = name.startswith("test_") or name.endswith("_test.py")
    return named or bool({"test", "tests", *RUNNERS} & {*folders, name.removesuffix(".py")})


def hides_library(path: str, files: Collection[str]) -> bool:
    """Whether a module would be imported instead of Python's own: at the root, or in a folder that is no package."""
    place = PurePosixPath(path)
    module = place.parent if place.name == "__init__.py" else place
    inside = f"{module.parent}/__init__.py" in files
    return place.suffix == ".py" and module.stem in sys.stdlib_module_names and not inside


@lru_cache(maxsize=8)
def files_at(repository: Path, commit: str | None) -> Mapping[str, bytes]:
    """The files of a folder, or of a git repository at a commit."""
    if not repository.is_dir():
        raise ValueError(f"{repository}: there is no such folder; a project is a folder or a git repository")
    if commit is None:
        return files_in(repository)
    ran = subprocess.run(["git", "-C", str(repository), "archive", commit], capture_output=True, timeout=120)
    if ran.returncode:
        raise ValueError(f"{repository}, commit {commit}: {ran.stderr.decode(errors='replace').strip()}")
    with tarfile.open(fileobj=io.BytesIO(ran.stdout)) as archive:
        members = [(member.name, archive.extractfile(member)) for member in archive if member.isfile()]
        return {name: content.read() for name, content in members if content is not None}
