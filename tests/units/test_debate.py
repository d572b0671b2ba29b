"""Debate with a verifier's scores: in the prompt, for the consensus, and metrics of each round."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from coterie.rewards import verifier as verifier_reward
from coterie.rewards.verifier import VerifierSource
from coterie.types import Task, Turn
from coterie.workflows.debate import Debate, round_metrics
from tests.scripted import Scripted

TASK = Task("t", "2 + 2?", "4")
SOURCE = VerifierSource(url="http://127.0.0.1:1")
SHOWN = "{others}\nScores: {scores}."


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """What the verifier is asked; an answer's score is its number in tenths."""
    pairs: list[tuple[str, str]] = []

    async def score_answers(source: VerifierSource, some: list[tuple[str, str]], deadline: float) -> list[float]:
        assert source == SOURCE
        pairs.extend(some)
        return [int(answer) / 10 for _, answer in some]

    monkeypatch.setattr(verifier_reward, "load", lambda name: score_answers)
    monkeypatch.setattr(verifier_reward, "_scores", {})
    return pairs


def play(debate: Debate, replies: dict[str, list[str]]) -> tuple[Any, Scripted]:
    team = Scripted(replies)
    return asyncio.run(debate.run(TASK, team, None)), team  # type: ignore[arg-type]


def test_a_debater_reads_the_scores_of_all_answers_its_own_first(asked: list[tuple[str, str]]) -> None:
    debate = Debate(roles=("ann", "bob"), rounds=2, revise=SHOWN, verifier=SOURCE)
    _, team = play(debate, {"ann": ["4", "4"], "bob": ["9", "4"]})
    assert team.ann.prompts[1][-1]["content"] == "bob said:\n9\nScores: you: 0.40, bob: 0.90."
    assert team.bob.prompts[1][-1]["content"] == "ann said:\n4\nScores: you: 0.90, ann: 0.40."
    assert asked == [("2 + 2?", "4"), ("2 + 2?", "9")]  # an answer that was scored is not asked again


@pytest.mark.parametrize(
    ("replies", "rounds"),
    [
        ({"ann": ["9", "9", "9"], "bob": ["9", "9", "9"], "cid": ["9", "9", "9"]}, 1),  # agree, with high scores
        ({"ann": ["4", "4", "9"], "bob": ["4", "4", "9"], "cid": ["4", "4", "9"]}, 3),  # agree, with low scores
        ({"ann": ["9", "9", "9"], "bob": ["8", "9", "9"], "cid": ["7", "1", "9"]}, 3),  # no majority; then a low mean
        ({"ann": ["9", "9", "9"], "bob": ["8", "9", "9"], "cid": ["7", "3", "9"]}, 2),  # 2 of 3 with a mean of .7
    ],
)
def test_consensus_needs_the_majority_and_the_mean_score(
    replies: dict[str, list[str]], rounds: int, asked: list[tuple[str, str]]
) -> None:
    roles = tuple(replies)
    debate = Debate(roles=roles, rounds=3, consensus=0.6, min_score=0.7, verifier=SOURCE, grade="each")
    outcome, _ = play(debate, replies)
    assert {role: len(answers) for role, answers in outcome.answer.items()} == dict.fromkeys(roles, rounds)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"revise": SHOWN}, "verifier: {scores} in revise needs one"),
        ({"consensus": 0.5, "min_score": 0.5}, "verifier: min_score needs one"),
        ({"verifier": SOURCE}, "verifier: has no effect"),
        ({"verifier": SOURCE, "min_score": 0.5}, "min_score: has no effect without consensus"),
    ],
)
def test_options_of_the_verifier_that_do_not_fit_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Debate(**options)


def rounds_of(*rounds: dict[str, tuple[str, bool | None, float | None]]) -> list[dict[str, Turn]]:
    return [
        {
            role: Turn(role, "p", 0, n, (1,), (2,), (0.0,), 1.0, text, "end", correct=correct, score=score)
            for role, (text, correct, score) in played.items()
        }
        for n, played in enumerate(rounds)
    ]


def test_metrics_of_the_rounds() -> None:
    rounds = rounds_of(
        {"a": ("4", True, None), "b": ("5", False, None), "c": ("5", False, None), "d": ("6", False, None)},
        {"a": ("5", False, None), "b": ("4", True, None), "c": ("4", True, None), "d": ("4", True, None)},
    )
    assert round_metrics(rounds) == {
        "debate/accuracy/0": 0.25,
        "debate/majority_accuracy/0": 0.0,
        "debate/accuracy/1": 0.75,
        "debate/majority_accuracy/1": 1.0,
        "debate/improved/1": 0.75,
        "debate/declined/1": 0.25,
    }


def test_rounds_without_labels_have_the_verifiers_scores_alone() -> None:
    rounds = rounds_of({"a": ("4", None, 0.5), "b": ("5", None, 0.25)}, {"a": ("4", None, 1.0), "b": ("4", None, 0.5)})
    assert round_metrics(rounds) == {"debate/score/0": 0.375, "debate/score/1": 0.75}
