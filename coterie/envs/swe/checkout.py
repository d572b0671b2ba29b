"""A project at one commit: apply a change to its files, and run its tests in the sandbox."""

from __future__ import annotations

import hashlib
import io
import json
import random
import secrets
import subprocess
import sys
import tarfile
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from pathlib import Path, PurePosixPath

from coterie.envs.swe.edits import EditError, edited
from coterie.envs.swe.mutated_tests import mutate_tests
from coterie.rewards import GraderTimeout
from coterie.sandbox import Limits, files_in, shared
from coterie.seeds import stable_hash

LAUNCHER, RUNNER = (Path(__file__).with_name(f"test_{name}.py").read_text() for name in ("launcher", "runner"))
# Modules that run the tests; a file of the project with such a name would be imported instead.
RUNNERS = {"conftest", "pytest", "_pytest", "unittest", "sitecustomize", "usercustomize"}
# Where pytest finds its options. A change to them is ignored; nothing else in a test run reads them.
SETTINGS = {"pytest.ini", ".pytest.ini", "pytest.toml", ".pytest.toml", "tox.ini", "setup.cfg", "pyproject.toml"}
FORGED = "it also passes mutated tests, which expect something else, so the change does not do what they expect"
NO_TEST = "none of the tests that passed is a function in the project's test files"
Files = dict[str, str | bytes]
MAX_OUTPUT = 16 << 20  # bytes that a command may print; hundreds of failing tests print a lot
SHOWN = 2000  # characters of a command's output that are kept, from its end
CACHED = 1000  # results


@dataclass(frozen=True)
class SuiteResult:
    """How many test commands passed, and what the others printed."""

    passed: int
    total: int
    output: str

    @property
    def fraction(self) -> float:
        return self.passed / self.total


@dataclass(frozen=True)
class CommandResult:
    """The result of one test command."""

    command: str
    ok: bool
    output: str  # shown if it failed
    seconds: float
    timed_out: bool
    test_ids: frozenset[str] | None = None  # tests reported as passed; None for a command that reports none


@dataclass(frozen=True)
class Checkout:
    """The files of a project at one commit. `test_files` are added before its tests run; the team does not see them."""

    files: Mapping[str, bytes]
    tests: Sequence[str]  # commands that fail until the issue is fixed (FAIL_TO_PASS): "python -m unittest tests.a"
    test_files: Mapping[str, str] = field(default_factory=dict)
    guards: Sequence[str] = ()  # commands that must keep passing (PASS_TO_PASS)
    seconds: float = 60.0  # for all commands together
    patch: str | None = None  # the reference fix, to distinguish slow tests from a change that hangs
    name: str = ""  # everything that the test results depend on, except the change; part of the cache key
    results: dict[str, SuiteResult] = field(default_factory=dict)  # cache by `_key`

    @cached_property
    def texts(self) -> dict[str, str]:
        """The files that are UTF-8 text."""
        found: dict[str, str] = {}
        for path, content in self.files.items():
            try:
                found[path] = content.decode()
            except UnicodeDecodeError:
                continue
        return found

    def edited(self, text: str) -> dict[str, str]:
        """The text files after a model's edits; raises EditError if they touch tests or shadow a standard module."""
        changed = edited(text, self.texts)
        for path, content in changed.items():
            if is_test(path) and self.texts.get(path) != content:
                raise EditError(f"{path}: tests may not be changed")
            if path not in self.texts and shadows_stdlib(path, changed):
                raise EditError(f"{path}: a new file may not have the name of one of Python's own modules")
        return changed

    def with_test_patch(self, patch: str) -> Checkout:
        """The checkout with the files that a test patch changes as its `test_files`; itself if there is no patch."""
        if not patch:
            return self
        patched = edited(patch, self.texts)
        return replace(self, test_files={path: text for path, text in patched.items() if self.texts.get(path) != text})

    async def test(self, texts: Mapping[str, str]) -> SuiteResult:
        """Run the test commands on the project with these texts. If a guard fails, no test counts as passed."""
        changes = {path: text for path, text in texts.items() if self.texts.get(path) != text}
        key = self._key(changes)
        if key not in self.results:
            tested = await self._tested(changes)
            while len(self.results) >= CACHED:
                self.results.pop(next(iter(self.results)))
            self.results[key] = tested
        return self.results[key]

    def _key(self, changes: Mapping[str, str]) -> str:
        content = json.dumps([self.name, sorted(changes.items())])
        return hashlib.sha256(content.encode("utf-8", "replace")).hexdigest()

    async def _tested(self, changes: Mapping[str, str]) -> SuiteResult:
        total, files = len(self.tests), self._with(changes)
        ran = await self._run(self.tests, files, self.seconds)
        if any(each.ok for each in ran):  # else the guards do not matter
            ran += await self._run(self.guards, files, self.seconds - sum(each.seconds for each in ran))
        await self._check_timeout(ran)
        failed = [each.output for each in ran if not each.ok]
        passed = sum(each.ok for each in ran[:total]) if all(each.ok for each in ran[total:]) else 0
        if passed:
            rng = random.Random(stable_hash(self._key(changes)))
            for each in (each for each in ran if each.ok):
                if reason := await self._forged(each, files, rng):
                    return SuiteResult(0, total, f"$ {each.command}\n({reason})")
        return SuiteResult(passed, total, "\n\n".join(failed))

    def _with(self, changes: Mapping[str, str]) -> Files:
        allowed = {path: text for path, text in changes.items() if PurePosixPath(path).name not in SETTINGS}
        return {**self.files, **allowed, **self.test_files}

    async def _run(self, commands: Sequence[str], files: Files, left: float) -> list[CommandResult]:
        """Run commands in order, within `left` seconds together."""
        ran: list[CommandResult] = []
        for command in commands:
            ran.append(await run_command(command, files, left))
            left -= ran[-1].seconds
        return ran

    def _test_files(self, test_ids: Iterable[str]) -> dict[str, str]:
        """The files of these tests, as far as a change cannot write them."""
        texts = {**self.texts, **self.test_files}
        paths = {test_id.partition("::")[0] for test_id in test_ids}
        return {path: texts[path] for path in sorted(paths & texts.keys()) if is_test(path) or path in self.test_files}

    async def _forged(self, real: CommandResult, files: Files, rng: random.Random) -> str | None:
        """Why a command's pass is forged, or None. A genuine pass becomes a failure on mutated tests."""
        if real.test_ids is None:
            return None
        found = {path: mutate_tests(text, rng) for path, text in self._test_files(real.test_ids).items()}
        mutated = {path: file for path, file in found.items() if file is not None}
        tests = {f"{path}::{name}" for path, file in mutated.items() for name in file.tests}
        if not tests & real.test_ids:
            return NO_TEST
        changed = {**files, **{path: file.text for path, file in mutated.items()}}
        again = await run_command(real.command, changed, self.seconds)
        return FORGED if again.ok or tests & (again.test_ids or frozenset()) else None

    async def _check_timeout(self, ran: Sequence[CommandResult]) -> None:
        """Raise GraderTimeout if tests timed out and the change is not the cause.

        Runs the same commands on the reference fix, or on the unchanged project if there is none. If they take more
        than half of the time there, the machine or the tests are slow, and the change cannot be scored.
        """
        first = next((place for place, each in enumerate(ran) if each.timed_out), None)
        if first is None:
            return
        commands = [each.command for each in ran[: first + 1]]
        again = await self._run(commands, self._with(self._reference()), self.seconds)
        needed = sum(each.seconds for each in again)
        if needed > self.seconds / 2:
            raise GraderTimeout(
                f"{commands[-1]}: not done after the {self.seconds:g} s of env.seconds; without the change "
                f"these tests take {needed:.1f} s, so the change need not be the cause"
            )

    def _reference(self) -> dict[str, str]:
        """The files of the reference fix; none if there is no such fix."""
        if self.patch is None:
            return {}
        try:
            return edited(self.patch, self.texts)
        except EditError as error:
            raise ValueError(f"patch: the reference fix cannot be applied: {error}") from error


async def run_command(command: str, files: Files, left: float) -> CommandResult:
    """Run one test command in the sandbox."""
    if left <= 0:
        return CommandResult(command, False, f"$ {command}\n(no time was left for it)", 0.0, timed_out=True)
    token = secrets.token_hex(8)
    request = json.dumps({"command": command, "runner": RUNNER, "token": token})
    limits = Limits(seconds=left, processes=64, output=MAX_OUTPUT)
    ran = await shared().run(LAUNCHER, stdin=request, files=files, limits=limits)
    printed, _, report = ran.stdout.partition(f"\n{token}")
    shown = f"{printed}\n{ran.stderr}".strip()[-SHOWN:]
    output = f"$ {command}\n{shown}\n({ran.status})"
    try:
        reported = json.loads(report.partition("\n")[0])
    except ValueError:  # it was killed, or another process wrote into the middle of the line
        return CommandResult(command, False, output, ran.seconds, ran.status == "timeout")
    test_ids = None if reported is None else frozenset(reported)
    return CommandResult(command, ran.ok, output, ran.seconds, ran.status == "timeout", test_ids)


def is_test(path: str) -> bool:
    """True for tests/…, test_add.py, add_test.py, conftest.py and for files named like a test runner."""
    *folders, name = PurePosixPath(path).parts
    named = name.startswith("test_") or name.endswith("_test.py")
    return named or bool({"test", "tests", *RUNNERS} & {*folders, name.removesuffix(".py")})


def shadows_stdlib(path: str, files: Collection[str]) -> bool:
    """True if a module would be imported instead of a standard one: at the root, or in a folder that is no package."""
    place = PurePosixPath(path)
    module = place.parent if place.name == "__init__.py" else place
    inside = f"{module.parent}/__init__.py" in files
    return place.suffix == ".py" and module.stem in sys.stdlib_module_names and not inside


@lru_cache(maxsize=8)
def files_at(repository: Path, commit: str | None) -> Mapping[str, bytes]:
    """The files of a folder, or of a git repository at a commit."""
    if not repository.is_dir():
        raise ValueError(f"{repository}: no such folder; a project is a folder or a git repository")
    if commit is None:
        return files_in(repository)
    ran = subprocess.run(["git", "-C", str(repository), "archive", commit], capture_output=True, timeout=120)
    if ran.returncode:
        raise ValueError(f"{repository}, commit {commit}: {ran.stderr.decode(errors='replace').strip()}")
    with tarfile.open(fileobj=io.BytesIO(ran.stdout)) as archive:
        members = [(member.name, archive.extractfile(member)) for member in archive if member.isfile()]
        return {name: content.read() for name, content in members if content is not None}
