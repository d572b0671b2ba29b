"""Laws of the team DeepCoder: what each role sees, when it stops, what everyone earns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from coterie.envs.base import attach_reward
from coterie.envs.code import Mbpp
from coterie.envs.dataset_env import Gsm8k
from coterie.sandbox import Sandbox, SandboxBroken
from coterie.types import Env
from coterie.workflows.deepcoder import DeepCoder
from tests.scripted_team import play, rewards, rows, script

RIGHT = "```python\ndef add(a, b):\n    return a + b\n```"
HALF = "```python\ndef add(a, b):\n    return a * b\n```"  # 2 * 2 is 2 + 2
WRONG = "```python\ndef add(a, b):\n    return None\n```"
SLOW = "```python\nwhile True: pass\n```"


@pytest.fixture
def code(tmp_path: Path) -> Env:
    row = {"text": "Add.", "code": RIGHT, "test_list": ["assert add(1, 2) == 3", "assert add(2, 2) == 4"]}
    return attach_reward(Mbpp(train=rows(tmp_path / "code.jsonl", row)), "code", {}, 10)


def test_a_program_that_is_right_at_once_needs_nobody_else(code: Env) -> None:
    episode, _ = play(DeepCoder(), code, {"generator": [RIGHT], "test_runner": [], "refiner": []})
    assert rewards(episode) == {"generator": [1.0]}
    assert episode.reward == 1.0 and episode.answer == RIGHT
    told = {"accuracy": 1, "generator_success": 1, "total_iterations": 0, "final_success": 1}
    assert episode.metrics == told | {"grader_timeouts": 0}


def test_the_test_runner_sees_the_failing_test_and_earns_what_the_refiner_gains(code: Env) -> None:
    lines = {"generator": [HALF], "test_runner": ["Use +."], "refiner": [RIGHT]}
    episode, team = play(DeepCoder(), code, lines)
    assert rewards(episode) == {"generator": [0.5], "test_runner": [0.5], "refiner": [1.0]}
    asked = team.test_runner.prompts[0][0]["content"]
    assert "assert add(1, 2) == 3" in asked.partition("tests passed")[2]
    assert "Use +." in team.refiner.prompts[0][0]["content"]
    told = {"refiner_success_rate": 1.0, "test_runner_success_rate": 1.0, "total_iterations": 1.0, "final_success": 1.0}
    assert told.items() <= episode.metrics.items() and episode.metrics["generator_success"] == 0


def test_half_of_the_tests_is_for_the_grader_alone(tmp_path: Path) -> None:
    tests = [f"assert add({n}, {n}) == {2 * n}" for n in (2, 0, 1, 3)]
    env = Mbpp(train=rows(tmp_path / "code.jsonl", {"text": "Add.", "code": RIGHT, "test_list": tests}))
    lines = {"generator": [WRONG], "test_runner": ["Use *."], "refiner": [HALF]}
    episode, team = play(DeepCoder(), attach_reward(env, "code", {}, 10), lines)
    asked = team.test_runner.prompts[0][0]["content"].partition("0 of 2 tests passed")[2]
    assert [test in asked for test in tests] == [True, True, False, False]
    # The refinement passes all that was shown, so nobody goes on; it is worth what it is by all tests.
    assert rewards(episode) == {"generator": [0.0], "test_runner": [0.5], "refiner": [0.5]}
    assert episode.reward == episode.metrics["final_success"] == 0


def test_a_refinement_that_makes_it_worse_costs_the_test_runner_and_the_best_program_counts(code: Env) -> None:
    lines = {"generator": [HALF], "test_runner": ["Hm.", "Hm!"], "refiner": [WRONG, HALF]}
    episode, _ = play(DeepCoder(max_refinement_iterations=2), code, lines)
    assert rewards(episode) == {"generator": [0.5], "test_runner": [-0.5, 0.0], "refiner": [0.0, 0.5]}
    assert episode.answer == HALF and episode.reward == 0.0
    assert episode.metrics["final_success"] == episode.metrics["refiner_success_rate"] == 0


def test_an_answer_without_a_program_passes_no_test_and_the_team_is_told(code: Env) -> None:
    lines = {"generator": ["I will not."], "test_runner": ["Write it."], "refiner": [RIGHT]}
    episode, team = play(DeepCoder(), code, lines)
    assert rewards(episode) == {"generator": [0.0], "test_runner": [1.0], "refiner": [1.0]}
    assert "there is no program" in team.test_runner.prompts[0][0]["content"]


def test_a_program_that_never_ends_is_reported_as_such(code: Env) -> None:
    lines = {"generator": [SLOW], "test_runner": ["It loops."], "refiner": [RIGHT]}
    episode, team = play(DeepCoder(), code, lines)
    assert "timeout" in team.test_runner.prompts[0][0]["content"].lower()
    assert episode.reward == 1.0


def test_a_sandbox_that_does_not_start_fails_the_episode_and_blames_no_program(
    code: Env, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(self: Sandbox, *_: Any, **__: Any) -> Any:
        raise SandboxBroken("a sandbox did not start: no output on stderr")

    monkeypatch.setattr(Sandbox, "run", broken)
    with pytest.raises(SandboxBroken):
        play(DeepCoder(), code, {"generator": [RIGHT], "test_runner": [], "refiner": []})


def test_a_program_that_takes_the_memory_is_told_of_it(code: Env) -> None:
    greedy = script("def add(a, b):\n    return len(bytearray(4 << 30))")
    lines = {"generator": [greedy], "test_runner": ["Less."], "refiner": [RIGHT]}
    episode, team = play(DeepCoder(), code, lines)
    assert rewards(episode) == {"generator": [0.0], "test_runner": [1.0], "refiner": [1.0]}
    assert "memory" in team.test_runner.prompts[0][0]["content"].lower()


def test_deepcoder_says_which_environments_have_tests(tmp_path: Path) -> None:
    questions = Gsm8k(train=rows(tmp_path / "q.jsonl", {"question": "1 + 1?", "answer": "#### 2"}))
    with pytest.raises(ValueError, match="mbpp, humaneval or deepcoder"):
        play(DeepCoder(), attach_reward(questions, "number", {}, 10), {"generator": ["x"]})
