"""Laws of solver and verifier."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from coterie.rewards import verifier as verifier_reward
from coterie.rewards.verifier import VerifierSource, open_source
from coterie.types import Outcome, Task
from coterie.workflows.verified_vote import VerifiedVote, brier, digit, elected
from tests.scripted import Scripted
from tests.verifier_process import ByLength
from tests.verifier_servers import served

TASK = Task("t", "What is 2 + 2?", "4")


def play(solutions: list[str], digits: list[str], **options: Any) -> tuple[Outcome, dict[str, float], Scripted]:
    team = Scripted({"solver": solutions, "verifier": digits})
    workflow = VerifiedVote(answers=len(solutions), grades=len(digits) // len(solutions), **options)
    outcome = asyncio.run(workflow.run(TASK, team, None))

    async def grade(text: str) -> float:
        return float(text.endswith("4"))

    assert outcome.judge is not None
    return outcome, dict(asyncio.run(outcome.judge(grade))), team


def test_the_answer_with_the_largest_sum_of_digits_wins_against_the_majority() -> None:
    outcome, metrics, _ = play(["so 5", "it is 5", "so 4"], ["2", "1", "9"])
    assert outcome.answer == "so 4"
    assert metrics["majority_right"] == 0 and metrics["any_right"] == 1
    assert metrics["solver_right"] == pytest.approx(1 / 3)
    assert metrics["auc_within_task"] == 1


def test_the_solver_sees_its_system_message_and_examples() -> None:
    _, _, team = play(["so 4"], ["9"], prompt="{question} =", system="Add.", examples=[("1 + 1 =", "2")])
    texts = [message["content"] for message in team.solver.prompts[0]]
    assert texts == ["Add.", "1 + 1 =", "2", "What is 2 + 2? ="] and len(team.verifier.prompts[0]) == 1


def test_a_reward_model_scores_the_solutions_without_a_turn_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    async def score_answers(source: VerifierSource, pairs: list[tuple[str, str]], deadline: float) -> list[float]:
        assert all(question == TASK.prompt for question, _ in pairs)
        return [0.9 if text.endswith("4") else 0.3 for _, text in pairs]

    monkeypatch.setattr(verifier_reward, "load", lambda name: score_answers)
    monkeypatch.setattr(verifier_reward, "_scores", {})
    solutions = ["so 5", "it is 5", "so 4"]
    outcome, metrics, team = play(solutions, [""] * 3, verifier=VerifierSource(url="http://127.0.0.1:1"))
    assert outcome.answer == "so 4" and [turn.reward for turn in team.solver.turns] == [0, 0, 1]
    assert metrics["best_scored_right"] == 1 and metrics["auc_within_task"] == 1 and "unreadable" not in metrics
    assert VerifiedVote(verifier=VerifierSource(url="http://127.0.0.1:1")).roles == ("solver",)


def test_a_solution_that_is_longer_than_the_models_context_has_score_0(monkeypatch: pytest.MonkeyPatch) -> None:
    with served(ByLength()) as url:
        source = VerifierSource(url=url)
        open_source(source, "cpu", 30.0)
        outcome, metrics, team = play(["x" * 2000 + " 5", "so 5", "it is 4"], [""] * 3, verifier=source)
    assert outcome.answer == "it is 4" and metrics["solver_right"] == pytest.approx(1 / 3)
    read = sum(sum(turn.tokens) for turn in team.solver.turns[1:])
    assert outcome.metrics == {"verifier_tokens": read, "verifier_too_long": pytest.approx(1 / 3)}


@pytest.mark.parametrize(
    ("texts", "scores", "wins"),
    [
        (["a 4", "b 4.0", "c 5"], [3, 5, 7], "b 4.0"),  # 8 against 7; the better of two equal answers is given
        (["a 4", "b 5", "c 5"], [6, 3, 3], "b 5"),  # equal sums: more votes
        (["a 4", "b 5"], [0, 0], "a 4"),  # nothing but the order
    ],
)
def test_ties_go_to_votes_and_then_to_the_earliest(texts: list[str], scores: list[float], wins: str) -> None:
    assert elected(texts, scores) == wins


def test_a_digit_earns_its_brier_score_and_a_solution_its_grade() -> None:
    _, metrics, team = play(["4", "5"], ["9", "6", "0", "no idea"])
    assert [turn.reward for turn in team.solver.turns] == [1, 0]
    assert [turn.reward for turn in team.verifier.turns] == pytest.approx([1, 1 - (1 / 3) ** 2, 1, 0])
    assert metrics["unreadable"] == 0.25


def test_the_true_probability_earns_most() -> None:
    """A proper scoring rule: of all digits, the one nearest to p has the largest expected reward."""
    for p in (0.0, 2 / 9, 0.5, 0.8, 1.0):
        expected = [p * brier(d, True) + (1 - p) * brier(d, False) for d in range(10)]
        assert abs(expected.index(max(expected)) / 9 - p) <= 0.5 / 9 + 1e-9


def test_the_verifier_reads_one_solution_or_goes_on_in_its_conversation() -> None:
    _, _, apart = play(["so 4"], ["9"])
    (message,) = apart.verifier.prompts[0]
    assert TASK.prompt in message["content"] and "so 4" in message["content"]
    _, _, together = play(["so 4"], ["9"], conversation=True)
    roles = [message["role"] for message in together.verifier.prompts[0]]
    assert roles == ["user", "assistant", "user"]
    assert together.verifier.prompts[0][1]["content"] == "so 4"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"answers": 0}, "answers: at least 1"),
        ({"grades": 0}, "grades: at least 1"),
        ({"review": "{answer}"}, "review: unknown field {answer}"),
        (
            {"verifier": VerifierSource(url="http://v"), "grades": 2},
            "verifier: grades, conversation and review",
        ),
        ({"conversation": True, "review": "{solution}"}, "review: unknown field {solution}"),
    ],
)
def test_options_that_cannot_work_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        VerifiedVote(**options)


@pytest.mark.parametrize(
    ("reply", "score"),
    [
        ("7", 7),
        (" 7 of 9", 7),
        ("2 + 2 is 4, not 5. Score: 1", 1),
        ("score: 3 … no, Score: **8**", 8),
        ("The score is out of 10", 1),
        ("Score: 42", 4),
        ("fine", None),
    ],
)
def test_a_check_may_come_before_the_score(reply: str, score: int | None) -> None:
    _, _, team = play(["4"], [reply])
    assert digit(team.verifier.turns[0]) == score
