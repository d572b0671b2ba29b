"""Tests of a project that are not done in time: a change that hangs is worth 0, a slow machine judges nobody."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from coterie.envs.swe.env import Swe
from coterie.rewards import GraderTimeout
from coterie.types import Episode, Task
from coterie.workflows.swe import Round, assign_rewards
from tests.episodes import turn
from tests.projects import BY_UNITTEST, RIGHT, UNITTEST, project, tried

HANGS = "def add(a, b):\n    while True: pass\n"
SLOW = BY_UNITTEST.replace("        self.assert", "        import time; time.sleep(30)\n        self.assert")
REPAIR = (
    "--- a/calc/ops.py\n+++ b/calc/ops.py\n@@ -1,2 +1,2 @@\n def add(a, b):\n-    return a - b\n+    return a + b\n"
)


@pytest.mark.parametrize("patch", [None, REPAIR])
def test_a_change_that_hangs_where_the_project_does_not_is_worth_nothing(patch: str | None) -> None:
    tested = tried(BY_UNITTEST, UNITTEST, HANGS, seconds=4.0, patch=patch)
    assert tested.passed == 0 and "(timeout)" in tested.output


@pytest.mark.parametrize(("change", "patch"), [(RIGHT, None), (HANGS, REPAIR)])
def test_tests_that_are_slow_without_the_change_too_give_no_grade(change: str, patch: str | None) -> None:
    with pytest.raises(
        GraderTimeout, match=r"tests.test_ops: not done after the 1 s of env.seconds; without the change"
    ):
        tried(SLOW, UNITTEST, change, seconds=1.0, patch=patch)


def test_the_known_repair_tells_slow_tests_that_the_project_fails_at_once() -> None:
    """As it is, the project fails in no time; only its repair shows how long its tests take."""
    test = BY_UNITTEST.replace(
        "        self.assert", "        import time; time.sleep(30 * (add(2, 3) == 5))\n        self.assert"
    )
    assert tried(test, UNITTEST, RIGHT, seconds=4.0).passed == 0
    with pytest.raises(GraderTimeout):
        tried(test, UNITTEST, RIGHT, seconds=1.0, patch=REPAIR)


def test_a_known_repair_that_cannot_be_made_is_told() -> None:
    with pytest.raises(ValueError, match=r"patch: the reference fix cannot be applied: calc/nowhere.py"):
        tried(BY_UNITTEST, UNITTEST, HANGS, seconds=1.0, patch=REPAIR.replace("ops", "nowhere"))


def test_no_validator_is_punished_for_a_slow_machine() -> None:
    world = project(SLOW, UNITTEST, seconds=1.0)
    change, judgement = turn("writer"), turn("validator")
    rounds = [Round(change, judgement, "", {**world.texts, "calc/ops.py": RIGHT})]
    with pytest.raises(GraderTimeout):
        asyncio.run(assign_rewards(turn("analyzer"), [], rounds, world))
    assert judgement.reward is None


def test_a_time_out_is_not_remembered_as_a_result() -> None:
    world = project(SLOW, UNITTEST, seconds=1.0)
    for _ in range(2):
        with pytest.raises(GraderTimeout):
            asyncio.run(world.test({"calc/ops.py": RIGHT}))
    assert world.results == {}


def test_the_environment_passes_a_rows_repair_on(tmp_path: Any) -> None:
    (tmp_path / "ops.py").write_text("")
    meta = {"repository": str(tmp_path), "commit": None, "tests": [], "guards": [], "test_files": {}, "test_patch": ""}
    env = Swe(train=tmp_path / "none.jsonl")
    assert env.open(Task("a", "b", REPAIR, meta)).patch == REPAIR
    assert env.open(Task("a", "b", None, meta)).patch is None


def test_an_answer_whose_tests_are_slow_is_no_zero(tmp_path: Any) -> None:
    (tmp_path / "calc.py").write_text("def add(a, b):\n    return a - b\n")
    test = SLOW.replace("calc.ops", "calc")
    meta = {"repository": str(tmp_path), "commit": None, "guards": [], "test_patch": ""}
    meta |= {"tests": ["python -m unittest test_calc"], "test_files": {"test_calc.py": test}}
    episode = Episode("e", Task("a", "b", None, meta), 0, answer=REPAIR.replace("calc/ops.py", "calc.py"))
    with pytest.raises(GraderTimeout):
        asyncio.run(Swe(train=tmp_path / "none.jsonl", seconds=1.0).score(episode))
