"""A project to repair: its files, and its tests in the sandbox."""

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
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path, PurePosixPath

from coterie.envs.swe.altered_tests import altered
from coterie.envs.swe.edits import EditError, edited
from coterie.rewards import GraderTimeout
from coterie.sandbox import Limits, files_in, shared
from coterie.seeds import stable_hash

INSIDE, RUNNER = (Path(__file__).with_name(f"checkout_{name}.py").read_text() for name in ("inside", "tests"))
# What runs the tests; a file of such a name beside the project would run in its place.
RUNNERS = {"conftest", "pytest", "_pytest", "unittest", "sitecustomize", "usercustomize"}
# Where pytest finds its options. Nothing is installed before the tests, so these files matter to nobody else there.
SETTINGS = {"pytest.ini", ".pytest.ini", "pytest.toml", ".pytest.toml", "tox.ini", "setup.cfg", "pyproject.toml"}
FORGED = "it passes also when its tests expect something else, so the change does not meet what they expect"
NO_TEST = "none of the tests that passed is a function in the project's test files"
Files = dict[str, str | bytes]
LOUDEST = 16 << 20  # bytes that a command may print; hundreds of tests that fail have much to say
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
class Command:
    """One test command that was run."""

    command: str
    ok: bool
    output: str  # what to say of it if it did not pass
    seconds: float
    late: bool  # it ran out of time
    places: frozenset[str] | None = None  # tests that are said to have passed; None of a command that says none


@dataclass(frozen=True)
class Checkout:
    """The files of a project at one commit. `test_files` are put in before its tests run, and nobody sees them."""

    files: Mapping[str, bytes]
    tests: Sequence[str]  # commands that fail until the issue is closed, such as "python -m unittest tests.test_add"
    test_files: Mapping[str, str] = field(default_factory=dict)
    guards: Sequence[str] = ()  # commands that pass and must go on passing
    seconds: float = 60.0  # for all commands together
    patch: str | None = None  # the known repair, to tell a slow machine from a change that hangs
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
        total, files = len(self.tests), self._with(changes)
        ran = await self._run(self.tests, files, self.seconds)
        if any(each.ok for each in ran):  # else no guard matters
            ran += await self._run(self.guards, files, self.seconds - sum(each.seconds for each in ran))
        await self._must_be_its_own_fault(ran)
        failed = [each.output for each in ran if not each.ok]
        passed = sum(each.ok for each in ran[:total]) if all(each.ok for each in ran[total:]) else 0
        if passed:
            rng = random.Random(stable_hash(self._key(changes)))
            for each in (each for each in ran if each.ok):
                if doubt := await self._doubt(each, files, rng):
                    return Tested(0, total, f"$ {each.command}\n({doubt})")
        return Tested(passed, total, "\n\n".join(failed))

    def _with(self, changes: Mapping[str, str]) -> Files:
        made = {path: text for path, text in changes.items() if PurePosixPath(path).name not in SETTINGS}
        return {**self.files, **made, **self.test_files}

    async def _run(self, commands: Sequence[str], files: Files, left: float) -> list[Command]:
        """Run commands one after the other, while there is time."""
        ran: list[Command] = []
        for command in commands:
            ran.append(await run_command(command, files, left))
            left -= ran[-1].seconds
        return ran

    def _test_files(self, places: Iterable[str]) -> dict[str, str]:
        """The test files in which these functions stand. A change cannot write them."""
        texts = {**self.texts, **self.test_files}
        paths = {place.partition("::")[0] for place in places}
        return {path: texts[path] for path in sorted(paths & texts.keys()) if is_test(path) or path in self.test_files}

    async def _doubt(self, real: Command, files: Files, rng: random.Random) -> str | None:
        """Why a command that passes proves nothing, or None: it must not pass when its tests expect something else."""
        if real.places is None:
            return None
        found = {path: altered(text, rng) for path, text in self._test_files(real.places).items()}
        changed = {path: each for path, each in found.items() if each is not None}
        tests = {f"{path}::{name}" for path, each in changed.items() for name in each.tests}
        if not tests & real.places:
            return NO_TEST
        again = await run_command(real.command, {**files, **{p: e.text for p, e in changed.items()}}, self.seconds)
        return FORGED if again.ok or tests & (again.places or frozenset()) else None

    async def _must_be_its_own_fault(self, ran: Sequence[Command]) -> None:
        """Raise GraderTimeout if tests ran out of time for another reason than the change.

        The same commands run on the known repair, or on the project as it is where none is known. If they need more
        than half of the time there, the machine or the tests are slow, and the change cannot be judged.
        """
        late = next((place for place, each in enumerate(ran) if each.late), None)
        if late is None:
            return
        commands = [each.command for each in ran[: late + 1]]
        again = await self._run(commands, self._with(self._repair()), self.seconds)
        needed = sum(each.seconds for each in again)
        if needed > self.seconds / 2:
            raise GraderTimeout(
                f"{commands[-1]}: not done after the {self.seconds:g} s of env.seconds; without the change "
                f"these tests take {needed:.1f} s, so it need not be the change that hangs"
            )

    def _repair(self) -> dict[str, str]:
        """What the known repair writes; nothing where there is none."""
        if self.patch is None:
            return {}
        try:
            return edited(self.patch, self.texts)
        except EditError as error:
            raise ValueError(f"patch: the known repair cannot be made: {error}") from error


async def run_command(command: str, files: Files, left: float) -> Command:
    """Run one test command in the sandbox."""
    if left <= 0:
        return Command(command, False, f"$ {command}\n(no time was left for it)", 0.0, late=True)
    token = secrets.token_hex(8)
    request = json.dumps({"command": command, "runner": RUNNER, "token": token})
    limits = Limits(seconds=left, processes=64, output=LOUDEST)
    ran = await shared().run(INSIDE, stdin=request, files=files, limits=limits)
    printed, _, report = ran.stdout.partition(f"\n{token}")
    shown = f"{printed}\n{ran.stderr}".strip()[-OUTPUT:]
    output = f"$ {command}\n{shown}\n({ran.status})"
    try:
        told = json.loads(report.partition("\n")[0])
    except ValueError:  # it was killed, or what the tests started writes into the middle of the line
        return Command(command, False, output, ran.seconds, ran.status == "timeout")
    # Its own time: how long it waited for a place does not count.
    places = None if told is None else frozenset(told)
    return Command(command, ran.ok, output, ran.seconds, ran.status == "timeout", places)


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
