"""Rows of SWE-bench and R2E-Gym that can be run here are prepared; the others are listed with the reason."""

from __future__ import annotations

import asyncio
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from coterie.cli.app import app
from coterie.envs.swe.edits import diff_of
from coterie.envs.swe.env import Swe
from coterie.envs.swe.runnable import Repositories
from coterie.types import Episode

BUGGY = "def add(a, b):\n    return a - b\n"
FIXED = BUGGY.replace("-", "+")
TEST = (
    "from calc import add\n\n\ndef test_add():\n    assert add(1, 1) == 2\n\n\n"
    "def test_zero():\n    assert add(1, 0) == 1\n"
)


def git(folder: Path, *words: str) -> str:
    who = ["-c", "user.name=a", "-c", "user.email=a@b.c"]
    return subprocess.run(["git", *who, "-C", str(folder), *words], check=True, capture_output=True, text=True).stdout


@pytest.fixture(scope="module")
def clones(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A clone of us/calc with two commits: the bug, and its fix."""
    folder = tmp_path_factory.mktemp("clones")
    clone = folder / "us" / "calc"
    clone.mkdir(parents=True)
    git(clone, "init", "-q")
    for text in (BUGGY, FIXED):
        (clone / "calc.py").write_text(text)
        git(clone, "add", ".")
        git(clone, "commit", "-qm", "x")
    return folder


def swebench(clones: Path, name: str, **changes: Any) -> dict[str, Any]:
    return {
        "instance_id": f"us__calc-{name}",
        "repo": "us/calc",
        "base_commit": git(clones / "us" / "calc", "rev-parse", "HEAD^").strip(),
        "problem_statement": f"add subtracts ({name})",
        "patch": diff_of({"calc.py": BUGGY}, {"calc.py": FIXED}),
        "test_patch": diff_of({}, {"test_new.py": TEST}),
        "FAIL_TO_PASS": '["test_new.py::test_add"]',
        "PASS_TO_PASS": '["test_new.py::test_zero"]',
    } | changes


def r2e(clones: Path, **changes: Any) -> dict[str, Any]:
    tests = {"test_file_names": ["test_1.py"], "test_file_codes": [TEST]}
    return {
        "repo_name": "calc",
        "commit_hash": git(clones / "us" / "calc", "rev-parse", "HEAD").strip(),
        "docker_image": "any",
        "problem_statement": "add subtracts",
        "expected_output_json": '{"test_add": "PASSED", "test_zero": "PASSED"}',
        "execution_result_content": json.dumps(tests),
    } | changes


def prepared(name: str, rows: list[dict[str, Any]], place: str, folder: Path) -> tuple[Path, list[str]]:
    """The folder that `coterie data prepare` writes, and why rows were rejected."""
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    words = ["data", "prepare", name, "--source", str(folder / "rows.jsonl"), "--out", str(folder / "out")]
    ran = CliRunner().invoke(app, [*words, "--repositories", place])
    assert ran.exit_code == 0, ran.output
    rejected = folder / "out" / "rejected.jsonl"
    lines = rejected.read_text().splitlines() if rejected.is_file() else []
    return folder / "out", [json.loads(line)["reason"] for line in lines]


def rewards(file: Path) -> list[float]:
    """What the known fix and no change at all are worth."""
    env = Swe(train=file)
    task = env.tasks("train")[0]
    episodes = [Episode("e", task, 0, answer=answer) for answer in (task.answer, "")]
    for episode in episodes:
        asyncio.run(env.score(episode))
    return [episode.reward for episode in episodes]


def test_swebench_rows_with_a_clone_run_and_the_others_are_listed(clones: Path, tmp_path: Path) -> None:
    rows = [
        swebench(clones, "good"),
        swebench(clones, "away", repo="us/other"),
        swebench(clones, "broken", FAIL_TO_PASS='["test_new.py::test_missing"]'),
        swebench(clones, "easy", FAIL_TO_PASS='["test_new.py::test_zero"]', PASS_TO_PASS="[]"),
        swebench(clones, "no-commit", base_commit="0" * 40),
    ]
    out, reasons = prepared("swebench", rows, str(clones), tmp_path)
    assert [reason.split(";")[0].replace(str(clones), "clones") for reason in reasons][:3] == [
        "no clone of us/other in clones",
        "its tests do not pass with the known fix here",
        "its tests pass before the fix",
    ]
    assert len(reasons) == 4 and "0000" in reasons[3]
    assert rewards(out / "test.parquet") == [1.0, 0.0]


def test_r2egym_rows_run_from_the_commit_before_the_fix(clones: Path, tmp_path: Path) -> None:
    rows = [r2e(clones), r2e(clones, problem_statement="no tests", execution_result_content="{}")]
    out, reasons = prepared("r2egym", rows, str(clones / "us"), tmp_path)
    assert reasons == ["execution_result_content has no test_file_names and test_file_codes"]
    assert rewards(out / "train.parquet") == [1.0, 0.0]


def test_a_project_is_cloned_from_a_url(clones: Path, tmp_path: Path) -> None:
    (clones / "us" / "calc.git").symlink_to(clones / "us" / "calc" / ".git")
    found = Repositories(f"file://{clones}", tmp_path).find("us/calc")
    assert git(found, "rev-parse", "HEAD") == git(clones / "us" / "calc", "rev-parse", "HEAD")
    with pytest.raises(ValueError, match=r"us/none\.git cannot be cloned"):
        Repositories(f"file://{clones}", tmp_path).find("us/none")
