"""Laws of the team that mends projects: its tests decide, and no trick passes them."""

from __future__ import annotations

import asyncio
import shlex
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from coterie.config import ConfigError
from coterie.data.files import as_parquet
from coterie.data.r2egym import R2EGYM
from coterie.envs.swe.edits import EditError, diff_of
from coterie.envs.swe.env import Swe as Projects
from coterie.sandbox import shared
from coterie.types import Env, Episode
from coterie.workflows.swe import Swe
from tests.runs import started
from tests.scripted_team import play, rewards, rows

BUGGY = "def add(a, b):\n    return a - b\n"
TEST = "import unittest\nfrom calc.ops import add\n\nclass T(unittest.TestCase):\n    def test_add(self):\n"
TEST += "        self.assertEqual(add(2, 3), 5)\n"
BLOCK = "calc/ops.py\n<<<<<<< SEARCH\n    return a - b\n=======\n    return {new}\n>>>>>>> REPLACE\n"
FIX, BAD_FIX = BLOCK.format(new="a + b"), BLOCK.format(new="b - a")


@pytest.fixture
def project(tmp_path: Path) -> Env:
    for path, text in {"calc/ops.py": BUGGY, "calc/__init__.py": "", "tests/test_ops.py": TEST}.items():
        (tmp_path / "calc" / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "calc" / path).write_text(text)
    (tmp_path / "calc" / "tests" / "__init__.py").write_text("")
    tests = "python -m unittest tests.test_ops"
    row = {"issue": "add(2, 3) gives -1", "repository": "calc", "tests": tests}
    return Projects(train=rows(tmp_path / "issues.jsonl", row))


def test_a_fix_makes_the_projects_own_tests_pass_and_the_answer_is_a_diff(project: Env) -> None:
    lines = {"analyzer": ["Change calc/ops.py: use +."], "writer": [FIX], "validator": ["Verdict: pass"]}
    episode, team = play(Swe(), project, lines)
    assert rewards(episode) == {"analyzer": [1.0], "writer": [1.0], "validator": [1.0]}
    assert episode.reward == 1.0 and "+    return a + b" in episode.answer
    assert BUGGY in team.writer.prompts[0][0]["content"]
    assert "+    return a + b" in team.validator.prompts[0][0]["content"]
    assert episode.metrics["validator_accuracy"] == episode.metrics["final_success"] == 1


def test_a_validator_that_doubts_is_right_and_the_writer_tries_again(project: Env) -> None:
    lines = {
        "analyzer": ["calc/ops.py"],
        "writer": [BAD_FIX, FIX],
        "validator": ["The sign is wrong.\nVerdict: fail", "Verdict: pass"],
    }
    episode, team = play(Swe(), project, lines)
    assert rewards(episode) == {"analyzer": [1.0], "writer": [0.1, 1.0], "validator": [1.0, 1.0]}
    assert "The sign is wrong." in team.writer.prompts[1][0]["content"]
    assert episode.metrics["writer_success_rate"] == 0.5 and episode.metrics["total_iterations"] == 2


def test_a_validator_that_is_too_sure_earns_nothing(project: Env) -> None:
    lines = {"analyzer": ["Everything."], "writer": [BAD_FIX], "validator": ["Verdict: pass"]}
    episode, team = play(Swe(), project, lines)
    assert rewards(episode) == {"analyzer": [0.0], "writer": [0.1], "validator": [0.0]}
    assert "(no file was named)" in team.writer.prompts[0][0]["content"]
    assert episode.reward == 0.0


def test_a_change_that_cannot_be_made_is_explained_to_the_writer(project: Env) -> None:
    lines = {"analyzer": ["calc/ops.py"], "writer": ["Just fix it.", FIX], "validator": ["Verdict: pass"]}
    episode, team = play(Swe(), project, lines)
    assert rewards(episode)["writer"] == [0.0, 1.0]
    assert "neither a search/replace block nor a diff" in team.writer.prompts[1][0]["content"]
    assert episode.metrics["writer_applied"] == 0.5


@pytest.mark.parametrize("path", ["tests/test_ops.py", "unittest.py", "conftest.py", "unittest/__init__.py"])
def test_a_writer_may_not_touch_the_tests_nor_what_runs_them(project: Env, path: str) -> None:
    old = TEST if path == "tests/test_ops.py" else ""
    cheat = f"{path}\n<<<<<<< SEARCH\n{old}=======\nprint('Ran 1 test')\n>>>>>>> REPLACE"
    lines = {"analyzer": ["x"], "writer": [cheat], "validator": []}
    episode, _ = play(Swe(max_refinement_iterations=1), project, lines)
    assert rewards(episode)["writer"] == [0.0] and episode.answer == ""


def put_in(text: str) -> str:
    """A change that writes something above the function."""
    return f"calc/ops.py\n<<<<<<< SEARCH\ndef add(a, b):\n=======\n{text}\ndef add(a, b):\n>>>>>>> REPLACE"


TRICKS = {
    "leaves": "import os\nos._exit(0)",
    "boasts and leaves": "import os\nprint('Ran 1 test')\nprint('1 passed', flush=True)\nos._exit(0)",
    "asks to leave": "import sys\nsys.exit(0)",
    "asserts nothing": "import unittest\nunittest.TestCase.assertEqual = lambda *a: None",
    "asserts other code": "import unittest\nunittest.TestCase.assertEqual.__code__ = (lambda *a: None).__code__",
    "asserts through the back door": "import unittest\nunittest.TestCase.__getattribute__ = lambda s, n: print",
    "fails nowhere": "import unittest\nunittest.TestResult.addFailure = lambda *a: None",
    "is always a success": "import unittest\nunittest.TestResult.wasSuccessful = lambda s: True",
    "brings a unittest along": "import sys, unittest\nclass Easy(unittest.TestCase):\n    assertEqual = print\n"
    "mine = type(sys)('unittest')\nmine.__dict__.update(vars(unittest), TestCase=Easy)\nsys.modules['unittest'] = mine",
    "patches pytest": "import _pytest.python\n_pytest.python.Function.runtest = lambda s: None",
    "writes to every descriptor": "import os\nfor fd in range(3, 20):\n    try: os.write(fd, b'x' * 32)\n"
    "    except OSError: pass\nos._exit(0)",
}


UNITTEST, PYTEST = "python -m unittest tests.test_ops", "pytest -q tests/test_ops.py"
BY_PYTEST = ["boasts and leaves", "asserts nothing", "patches pytest"]


@pytest.mark.parametrize(
    ("trick", "runner"), [*((trick, UNITTEST) for trick in TRICKS), *((trick, PYTEST) for trick in BY_PYTEST)]
)
def test_no_change_passes_by_a_trick(project: Env, trick: str, runner: str) -> None:
    checkout = project.open(project.tasks("train")[0])
    first, second, rest = TEST.split("\n", 2)
    late = f"{second}\n{first}\n{rest}".encode()  # the project comes before unittest
    checkout = replace(checkout, tests=[runner], files={**checkout.files, "tests/test_ops.py": late})
    tested = asyncio.run(checkout.test(checkout.edited(put_in(TRICKS[trick]))))
    assert tested.passed == 0, tested.output


@pytest.mark.parametrize("command", ["python -m unittest", "python3 -W error -m unittest tests.test_ops", "pytest -q"])
def test_a_right_change_passes_however_the_tests_are_run(project: Env, command: str) -> None:
    checkout = replace(project.open(project.tasks("train")[0]), tests=[command])
    tested = asyncio.run(checkout.test(checkout.edited(FIX)))
    assert tested.passed == 1, tested.output


@pytest.mark.parametrize("path", ["argparse.py", "json/__init__.py", "src/json.py"])
def test_a_new_file_may_not_stand_before_pythons_own(project: Env, path: str) -> None:
    with pytest.raises(EditError, match=f"{path}: a new file may not have the name"):
        project.open(project.tasks("train")[0]).edited(f"{path}\n<<<<<<< SEARCH\n=======\nx = 1\n>>>>>>> REPLACE")


def test_a_project_may_call_its_own_modules_as_python_does(project: Env) -> None:
    checkout = project.open(project.tasks("train")[0])
    own = {"json.py": b"from calc.ops import add\n", "calc/types.py": b""}
    test = (
        b"import unittest, json\nclass T(unittest.TestCase):\n    def test(self):\n        assert json.add(2, 3) == 5\n"
    )
    named = replace(checkout, files={**checkout.files, **own, "tests/test_ops.py": test})
    tested = asyncio.run(named.test(named.edited(FIX + "\ncalc/copy.py\n<<<<<<< SEARCH\n=======\n>>>>>>> REPLACE")))
    assert tested.passed == 1, tested.output


def test_a_change_cannot_tell_pytest_to_leave_tests_out(project: Env) -> None:
    checkout = replace(project.open(project.tasks("train")[0]), tests=["pytest"])
    files = {**checkout.files, "tests/test_other.py": b"def test_other():\n    pass\n"}
    cheat = "pytest.ini\n<<<<<<< SEARCH\n=======\n[pytest]\naddopts = -k other\n>>>>>>> REPLACE"
    tried = replace(checkout, files=files)
    assert asyncio.run(tried.test(tried.edited(cheat))).passed == 0


LOOP = "calc/ops.py\n<<<<<<< SEARCH\n    return a - b\n=======\n    while True: pass\n>>>>>>> REPLACE"


def test_a_test_that_never_ends_takes_the_time_of_all_and_earns_nothing(project: Env) -> None:
    env = replace(project, seconds=3.0)  # type: ignore[type-var]
    checkout = replace(env.open(env.tasks("train")[0]), tests=["python -m unittest tests.test_ops"] * 50)
    tested = asyncio.run(checkout.test(checkout.edited(LOOP)))
    assert tested.passed == 0
    assert "(timeout)" in tested.output and "no time was left" in tested.output
    lines = {"analyzer": ["x"], "writer": [LOOP], "validator": ["Verdict: fail"]}
    episode, _ = play(Swe(max_refinement_iterations=1), env, lines)
    assert rewards(episode) == {"analyzer": [0.0], "writer": [0.1], "validator": [1.0]}
    assert episode.reward == 0.0 and episode.metrics["accuracy"] == 0.0


def test_a_change_is_tested_once_and_once_more_where_it_passes(project: Env, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs: list[str] = []
    run = shared().run

    async def counted(code: str, **given: Any) -> Any:
        jobs.append(code)
        return await run(code, **given)

    monkeypatch.setattr(shared(), "run", counted)
    lines = {"analyzer": ["calc/ops.py"], "writer": [BAD_FIX, FIX], "validator": ["Verdict: fail", "Verdict: pass"]}
    episode, _ = play(Swe(), project, lines)
    assert episode.reward == 1.0 and len(jobs) == 3, "the one that passes meets altered tests, too"


SWE_ROW = {"instance_id": "a-1", "repo": "a/b", "base_commit": "c", "problem_statement": "d", "patch": "e"}
SWE_ROW |= {"test_patch": "f", "FAIL_TO_PASS": '["g"]', "PASS_TO_PASS": "[]"}


def swe_tree(file: Path, model: Path, **changes: Any) -> dict[str, Any]:
    return {
        "policies": {"all": {"model": str(model)}},
        "roles": dict.fromkeys(Swe().roles, "all"),
        "workflow": "swe",
        "env": {"name": "swe", "train": str(file), "test": str(file)},
        "reward": "native",
        "algorithm": "grpo",
        "device": "cpu",
    } | changes


def test_the_time_of_tests_is_set_in_one_place(project: Env, tmp_path: Path) -> None:
    tree = swe_tree(tmp_path / "issues.jsonl", tmp_path / "no model", rollout={"score_deadline": 90})
    with pytest.raises(ConfigError, match=r"rollout.score_deadline: has no effect: env.seconds limits"):
        started(tree, tmp_path)


def test_tests_of_projects_are_not_cut_off_by_the_time_for_scoring(
    project: Env, tmp_path: Path, model_folder: Callable[[str], Path]
) -> None:
    run = started(swe_tree(tmp_path / "issues.jsonl", model_folder("llama")), tmp_path)
    assert run.collector.score_deadline is None


def test_a_verdict_that_is_none_earns_the_validator_nothing_and_accepts_nothing(project: Env) -> None:
    lines = {"analyzer": ["calc/ops.py"], "writer": [FIX, FIX], "validator": ["Hm.", "Who knows?"]}
    episode, _ = play(Swe(), project, lines)
    assert rewards(episode) == {"analyzer": [1.0], "writer": [1.0, 1.0], "validator": [0.0, 0.0]}
    assert episode.metrics["accepted"] == 0 and episode.metrics["validator_accuracy"] == 0


@pytest.mark.parametrize("command", ["no-such-program --all", "python -m unittest tests.no_such", "pytest nowhere.py"])
def test_a_test_command_that_cannot_run_passes_nothing(project: Env, command: str) -> None:
    task = project.tasks("train")[0]
    broken = replace(task, meta={**task.meta, "tests": [command]})
    lines = {"analyzer": ["calc/ops.py"], "writer": [FIX], "validator": ["Verdict: pass"]}
    episode, _ = play(Swe(max_refinement_iterations=1), project, lines, broken)
    assert rewards(episode) == {"analyzer": [0.1], "writer": [0.1], "validator": [0.0]} and episode.reward == 0.0


def test_a_file_is_named_by_its_whole_path(project: Env) -> None:
    checkout = project.open(project.tasks("train")[0])
    known = replace(checkout, files={**checkout.files, "ops.py": b"", "a.py": b"", "data.py": b""})
    named = Swe()._named("Look at `calc/ops.py`, then at data.py.", known)
    assert named == ["calc/ops.py", "data.py"], "neither ops.py nor a.py was named"
    assert Swe(max_files=1)._named("Look at `calc/ops.py`, then at data.py.", known) == ["calc/ops.py"]


def test_a_change_that_closes_the_issue_and_breaks_something_else_closes_nothing(project: Env) -> None:
    checkout = project.open(project.tasks("train")[0])
    zero = TEST.replace("add(2, 3), 5", "add(0, 0), 0").encode()
    files = {**checkout.files, "tests/test_zero.py": zero}
    guarded = replace(checkout, files=files, guards=["python -m unittest tests.test_zero"])
    for change, passed in ((FIX, 1), (BLOCK.format(new="5"), 0)):
        tested = asyncio.run(guarded.test(guarded.edited(change)))
        assert tested.passed == passed and ("test_zero" in tested.output) is not bool(passed)


def test_rows_of_swe_bench_name_what_must_pass_and_what_must_go_on_passing(tmp_path: Path) -> None:
    odd = 'test_a.py::test_b[it\'s "0"]'
    listed = {"FAIL_TO_PASS": [odd], "PASS_TO_PASS": ["test_a.py::test_c", odd]}
    env = Projects(train=rows(tmp_path / "rows.jsonl", SWE_ROW | listed), repositories=tmp_path)
    (task,) = env.tasks("train")
    assert [shlex.split(command)[4:] for command in task.meta["tests"]] == [[odd]]
    assert [shlex.split(command)[4:] for command in task.meta["guards"]] == [["test_a.py::test_c", odd]]


def test_a_git_repository_is_read_at_its_commit_and_hidden_tests_are_put_in(tmp_path: Path) -> None:
    clone = tmp_path / "clones" / "us__calc"
    (clone / "calc").mkdir(parents=True)
    (clone / "calc" / "ops.py").write_text(BUGGY)
    who = ["-c", "user.name=a", "-c", "user.email=a@b"]
    for words in (["init", "-q"], ["add", "."], [*who, "commit", "-qm", "first"]):
        subprocess.run(["git", "-C", str(clone), *words], check=True, capture_output=True)
    head = subprocess.run(["git", "-C", str(clone), "rev-parse", "HEAD"], check=True, capture_output=True, text=True)
    (clone / "calc" / "ops.py").write_text("broken later")
    row = {
        "instance_id": "us__calc-1",
        "repo": "us/calc",
        "base_commit": head.stdout.strip(),
        "problem_statement": "add subtracts",
        "patch": diff_of({"calc/ops.py": BUGGY}, {"calc/ops.py": BUGGY.replace("-", "+")}),
        "test_patch": diff_of(
            {}, {"test_new.py": "from calc.ops import add\n\ndef test_add():\n    assert add(1, 1) == 2\n"}
        ),
        "FAIL_TO_PASS": '["test_new.py::test_add"]',
        "PASS_TO_PASS": "[]",
    }
    env = Projects(train=rows(tmp_path / "swebench.jsonl", row), repositories=tmp_path / "clones")
    task = env.tasks("train")[0]
    assert list(env.open(task).texts) == ["calc/ops.py"]
    for answer, worth in ((task.answer, 1.0), ("", 0.0)):
        episode = Episode("e", task, 0, answer=answer)
        asyncio.run(env.score(episode))
        assert episode.reward == worth


R2E = {
    "repo_name": "sympy",
    "commit_hash": "abc",
    "docker_image": "namanjain12/sympy_final:abc",
    "problem_statement": "It is broken.",
    "expected_output_json": '{"TestA.test_b": "PASSED", "TestA.test_c": "FAILED"}',
    "prompt": "…",
}
OWN = {"issue": "add(2, 3) gives -1", "repository": "calc", "tests": "python -m unittest"}


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (R2E, "rows of r2egym run after `coterie data prepare r2egym --repositories PLACE`"),
        ({**OWN, "tests": [1]}, r"tests is \[1\]; it must list commands"),
        ({**OWN, "tests": []}, r"tests is \[\]; it must list commands"),
        ({"issue": "x", "repository": "y"}, "tests is null; it must list commands"),
        ({**OWN, "test_files": ["a.py"]}, r'test_files is \["a.py"\]; it must map paths to texts'),
        ({**OWN, "commit": 7}, "commit is 7, not text"),
        ({"issue": "x"}, "no field repository; it has issue"),
    ],
)
def test_a_row_that_cannot_be_run_is_told_with_its_file_and_number(
    row: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=rf"issues.jsonl, row 2: {message}"):
        Projects(train=rows(tmp_path / "issues.jsonl", OWN, row)).tasks("train")


@pytest.mark.parametrize(
    ("file", "message"),
    [
        ("nowhere.jsonl", r"env.train: .*nowhere.jsonl: no such file \(.*yaml, line \d+\)"),
        ("swebench.jsonl", r"env.repositories: SWE-bench rows need a folder with clones .*yaml, line \d+\)"),
        ("prepared.parquet", r"env.train: .*prepared.parquet holds r2egym, whose rows run after `coterie data prepare"),
    ],
)
def test_what_is_wrong_with_a_file_is_told_with_its_key_before_a_model_is_looked_for(
    file: str, message: str, tmp_path: Path
) -> None:
    rows(tmp_path / "swebench.jsonl", SWE_ROW)
    row = R2EGYM.parse(R2E, "")
    assert not isinstance(row, str)
    (tmp_path / "prepared.parquet").write_bytes(as_parquet("r2egym", [row]))
    with pytest.raises(ConfigError, match=message):
        started(swe_tree(tmp_path / file, tmp_path / "no model"), tmp_path)


def test_rows_of_r2e_gym_parse() -> None:
    row, parse = R2E, R2EGYM.parse
    parsed = parse(row, "")
    assert (
        not isinstance(parsed, str) and parsed.id == "sympy/abc" and parsed.meta["expected"]["TestA.test_b"] == "PASSED"
    )
    assert (
        parse(row | {"expected_output_json": "[]"}, "") == "expected_output_json is not an object of tests and outcomes"
    )
    assert parse(row | {"expected_output_json": '{"a": "FAILED"}'}, "") == "no test is expected to pass"
