"""A project to repair: its files, and its tests in the sandbox."""

from __future__ import annotations

import io
import re
import subprocess
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path, PurePosixPath

from coterie.sandbox import Limits, files_in, shared
from coterie.workflows.edits import EditError, edited

# Runs a command as in a shell at the project's root, with the packages that jobs may import.
COMMAND = """
import os, shlex, subprocess, sys
words = shlex.split(COMMAND)
python = {"python": [sys.executable], "python3": [sys.executable], "pytest": [sys.executable, "-m", "pytest"]}
words[:1] = python.get(words[0], words[:1])
path = os.pathsep.join(folder for folder in sys.path if folder)
sys.exit(subprocess.run(words, env={**os.environ, "PYTHONPATH": path}).returncode)
"""
# A program that ends itself with exit code 0 while tests are collected has passed none.
RAN = re.compile(r"\bRan [1-9]\d* tests?\b|\b[1-9]\d* passed\b")
# What runs the tests; a file of such a name beside the project would run in its place.
RUNNERS = {"conftest", "pytest", "_pytest", "unittest", "sitecustomize", "usercustomize"}
OUTPUT = 2000  # letters of a test's output that are kept, the last ones


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
    tests: Sequence[str]  # commands, such as "python -m unittest tests.test_add"
    test_files: Mapping[str, str] = field(default_factory=dict)
    seconds: float = 60.0  # for one command

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
        return changed

    async def test(self, texts: Mapping[str, str]) -> Tested:
        """Run every test command on the project with these texts in it."""
        files: dict[str, str | bytes] = {**self.files, **texts, **self.test_files}
        passed, said = 0, list[str]()
        for command in self.tests:
            limits = Limits(seconds=self.seconds, processes=64)
            ran = await shared().run(f"COMMAND = {command!r}\n{COMMAND}", files=files, limits=limits)
            output = f"{ran.stdout}\n{ran.stderr}"
            proven = not re.search(r"\b(?:unittest|pytest)\b", command) or RAN.search(output) is not None
            passed += ran.ok and proven
            said += [] if ran.ok and proven else [f"$ {command}\n{output.strip()[-OUTPUT:]}\n({ran.ended})"]
        return Tested(passed, len(self.tests), "\n\n".join(said))


def is_test(path: str) -> bool:
    """tests/…, test_add.py, add_test.py and conftest.py are the project's tests, and so is what runs them."""
    *folders, name = PurePosixPath(path).parts
    named = name.startswith("test_") or name.endswith("_test.py")
    return named or bool({"test", "tests", *RUNNERS} & {*folders, name.removesuffix(".py")})


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
