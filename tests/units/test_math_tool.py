"""Laws of the team that calculates with programs: who ends it, and what everyone earns."""

from __future__ import annotations

from pathlib import Path

import pytest

from coterie.envs.base import attach_reward
from coterie.envs.dataset_env import Gsm8k
from coterie.types import Env
from coterie.workflows.math_tool import MathTool
from tests.scripted_team import play, rewards, rows, script


@pytest.fixture
def sums(tmp_path: Path) -> Env:
    row = {"question": "20 + 22?", "answer": "#### 42"}
    return attach_reward(Gsm8k(train=rows(tmp_path / "sums.jsonl", row)), "math", {}, 20)


def test_the_verifier_alone_ends_it_even_when_it_is_wrong(sums: Env) -> None:
    lines = {"analyzer": ["Add."], "executor": [script("print(41)")], "verifier": ["Verdict: correct"]}
    episode, _ = play(MathTool(max_refinement_iterations=3), sums, lines)
    assert rewards(episode) == {"analyzer": [0.0], "executor": [0.0], "verifier": [0.0]}
    assert episode.metrics["accepted"] == 1 and episode.metrics["final_success"] == 0


def test_a_program_that_is_right_at_once_is_accepted_at_once(sums: Env) -> None:
    lines = {"analyzer": ["Add."], "executor": [script("print(20 + 22)")], "verifier": ["Verdict: correct"]}
    episode, team = play(MathTool(max_refinement_iterations=3), sums, lines)
    assert rewards(episode) == {"analyzer": [1.0], "executor": [1.0], "verifier": [1.0]}
    assert episode.reward == 1.0 and episode.metrics["total_iterations"] == 1
    assert "It printed:\n42" in team.verifier.prompts[0][0]["content"]


def test_a_right_answer_that_the_verifier_rejects_is_tried_again(sums: Env) -> None:
    lines = {
        "analyzer": ["Add.", "Subtract."],
        "executor": [script("print(20 + 22)"), script("print(20 - 22)")],
        "verifier": ["Verdict: incorrect", "Verdict: incorrect"],
    }
    episode, team = play(MathTool(max_refinement_iterations=2), sums, lines)
    assert rewards(episode) == {"analyzer": [1.0, 0.0], "executor": [1.0, 0.0], "verifier": [0.0, 1.0]}
    assert episode.answer == r"\boxed{-2}" and episode.reward == 0.0
    assert "print(20 + 22)" in team.analyzer.prompts[1][0]["content"]
    assert episode.metrics["executor_success"] == 1 and episode.metrics["verifier_accuracy"] == 0.5
    assert episode.metrics["analyzer_success_rate"] == 0.5


def test_a_second_program_can_be_right(sums: Env) -> None:
    lines = {
        "analyzer": ["Add.", "Add them."],
        "executor": [script("print(20 + '22')"), script("print('so:')\nprint(20 + 22)")],
        "verifier": ["Wrong, it crashed.", "Verdict: correct"],
    }
    episode, team = play(MathTool(), sums, lines)
    assert episode.reward == 1.0 and episode.answer == r"\boxed{42}"
    assert "TypeError" in team.verifier.prompts[0][0]["content"]
    assert rewards(episode)["verifier"] == [1.0, 1.0]
    assert episode.metrics["executor_ran"] == 0.5


def test_a_verdict_that_is_none_earns_nothing_and_ends_nothing(sums: Env) -> None:
    lines = {
        "analyzer": ["a", "b"],
        "executor": ["No code.", script("import time\ntime.sleep(9)")],
        "verifier": ["Hm.", "Verdict: incorrect"],
    }
    episode, team = play(MathTool(seconds=0.5), sums, lines)
    assert rewards(episode) == {"analyzer": [0.0, 0.0], "executor": [0.0, 0.0], "verifier": [0.0, 1.0]}
    assert "no program" in team.verifier.prompts[0][0]["content"]
    assert "Timeout" in team.verifier.prompts[1][0]["content"]
    assert episode.answer == "" and episode.metrics["total_iterations"] == 2
