"""Projects from the layouts of SWE-bench and R2E-Gym: repository, commit, test commands, hidden tests, known fix."""

from __future__ import annotations

import ast
import json
import shlex
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from coterie.data.r2egym import PASSED
from coterie.data.row import Row
from coterie.envs.swe.checkout import is_test

R2E_FOLDER = "r2e_tests"  # where R2E-Gym puts its tests
# R2E-Gym names a project without its owner.
R2E_OWNERS = {
    "aiohttp": "aio-libs/aiohttp",
    "bokeh": "bokeh/bokeh",
    "coveragepy": "nedbat/coveragepy",
    "datalad": "datalad/datalad",
    "numpy": "numpy/numpy",
    "orange3": "biolab/orange3",
    "pandas": "pandas-dev/pandas",
    "pillow": "python-pillow/Pillow",
    "pyramid": "Pylons/pyramid",
    "scrapy": "scrapy/scrapy",
    "statsmodels": "statsmodels/statsmodels",
    "sympy": "sympy/sympy",
    "tornado": "tornadoweb/tornado",
}


def pytest_command(names: Sequence[str]) -> str:
    return shlex.join(["python", "-m", "pytest", "-q", *names])


def swebench_project(row: Row, repository: Path) -> dict[str, Any]:
    """FAIL_TO_PASS are the tests, PASS_TO_PASS guards; the test patch is applied before they run."""
    failing, passing = row.meta["FAIL_TO_PASS"], row.meta["PASS_TO_PASS"]
    return {
        "repository": str(repository.resolve()),
        "commit": row.meta["base_commit"],
        "tests": [pytest_command([name]) for name in failing],
        "guards": [pytest_command(passing)] if passing else [],
        "test_files": {},
        "test_patch": row.meta["test_patch"],
    }


def r2e_project(row: Row, repository: Path) -> dict[str, Any]:
    """The project at the commit before the fix, with the row's test files and the tests that are expected to pass."""
    files = r2e_tests(row.meta)
    named = list(r2e_ids(files, row.meta["expected"]))
    if not named:
        raise ValueError("none of the tests that are expected to pass is in execution_result_content")
    return {
        "repository": str(repository.resolve()),
        "commit": git(repository, "rev-parse", f"{row.meta['commit_hash']}^").strip(),
        "tests": [pytest_command(named)],
        "guards": [],
        "test_files": files,
        "test_patch": "",
    }


def r2e_fix(row: Row, repository: Path) -> str:
    """The change of the commit, without its tests."""
    commit = row.meta["commit_hash"]
    changed = git(repository, "diff", "--name-only", f"{commit}^", commit).splitlines()
    code = [path for path in changed if not is_test(path)]
    return git(repository, "diff", f"{commit}^", commit, "--", *code) if code else ""


def r2e_tests(meta: Mapping[str, Any]) -> dict[str, str]:
    """The test files of a row, by path."""
    try:
        content = json.loads(meta["execution_result_content"])
        named = zip(content["test_file_names"], content["test_file_codes"], strict=True)
        return {f"{R2E_FOLDER}/{Path(name).name}": str(code) for name, code in named}
    except (KeyError, TypeError, ValueError):
        raise ValueError("execution_result_content has no test_file_names and test_file_codes") from None


def r2e_ids(files: Mapping[str, str], expected: Mapping[str, str]) -> Iterator[str]:
    """The ids that pytest gives to the tests that are expected to pass: `r2e_tests/test_1.py::TestA::test_b`."""
    for path, text in files.items():
        for name in tests_in(text):
            if expected.get(name) == PASSED:
                yield f"{path}::{name.replace('.', '::')}"


def tests_in(text: str) -> Iterator[str]:
    """The test functions of a file, those of classes with their class: `TestA.test_b`."""
    try:
        body = ast.parse(text).body
    except SyntaxError:
        return
    for node in body:
        inside = node.body if isinstance(node, ast.ClassDef) else [node]
        prefix = f"{node.name}." if isinstance(node, ast.ClassDef) else ""
        for one in inside:
            if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef) and one.name.startswith("test"):
                yield f"{prefix}{one.name}"


def git(repository: Path, *words: str) -> str:
    """The output of a git command; a ValueError with git's own words if it fails."""
    ran = subprocess.run(["git", "-C", str(repository), *words], capture_output=True, timeout=600)
    if ran.returncode:
        lines = ran.stderr.decode(errors="replace").strip().splitlines() or ["git failed"]
        raise ValueError(lines[-1])
    return ran.stdout.decode(errors="replace")
