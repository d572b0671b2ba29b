"""A dry run finds, before training, what would go wrong in it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from coterie.check import DryRun, Finding, Gap, dry_run, findings
from coterie.cli.check_tables import problems
from coterie.config import load
from coterie.training.build import build
from coterie.training.loop import Run
from coterie.types import Episode, Stop
from tests.episodes import episode, turn
from tests.games import game

ROLES = {"reasoner": "thinker", "actor": "doer"}


def said(role: str, advantage: float | None = 1.0, text: str = "42", stop: Stop = "end", reward: float = 0.0) -> Any:
    spoken = turn(role, policy=ROLES[role])
    credit = None if advantage is None else torch.full((1,), advantage)
    return replace(spoken, text=text, stop=stop, reward=reward, advantages=credit)


def healthy() -> list[Episode]:
    """One episode that won and one that lost, each with two turns that have credit."""
    return [
        episode([said("reasoner", sign), said("actor", sign)], reward=reward, repeat=repeat)
        for repeat, (sign, reward) in enumerate([(1.0, 1.0), (-1.0, 0.0)])
    ]


def failed(task: str = "task") -> Episode:
    lost = episode([], task=task)
    lost.error, lost.error_kind = "Traceback: the scale is broken", "ZeroDivisionError"
    return lost


def found(episodes: list[Episode], **more: Any) -> list[Finding]:
    return findings(DryRun(episodes, ROLES, **{"trained": frozenset(ROLES.values()), **more}))


def only(list_of_one: list[Finding]) -> tuple[str, str]:
    assert len(list_of_one) == 1, list_of_one
    return list_of_one[0].level, list_of_one[0].text


def test_a_healthy_team_has_no_problems() -> None:
    assert found(healthy()) == []
    assert problems([]).plain == "no problems"


def test_when_all_episodes_fail_that_is_the_one_error() -> None:
    level, text = only(found([failed(), failed("other")]))
    assert level == "error" and "2 of 2 episodes failed (2 ZeroDivisionError)" in text
    assert text.endswith("task/0:\nTraceback: the scale is broken")


def test_one_failed_episode_is_a_warning() -> None:
    assert only(found([*healthy(), failed()]))[0] == "warning"


def test_a_role_that_nobody_asks_is_named() -> None:
    silent = [replace(one, turns=one.turns[1:]) for one in healthy()]
    level, text = only(found(silent))
    assert level == "warning" and text.startswith("reasoner took no turn")


def test_a_constant_reward_is_said_once_for_the_whole_team() -> None:
    same = [replace(one, reward=0.5) for one in healthy()]
    level, text = only(found(same))
    assert level == "warning" and "every episode has the reward 0.5" in text


def test_a_role_whose_reward_is_constant_is_named() -> None:
    """The actor's own reward takes back what the team's gave."""
    one, two = healthy()
    one.turns[1], two.turns[1] = said("actor", reward=-1.0), said("actor", -1.0, reward=0.0)
    assert only(found([one, two])) == ("warning", "the reward of actor is constant: always 0")


@pytest.mark.parametrize("advantage", [0.0, 1e-12, None])
def test_rewards_that_reach_no_trained_token_are_an_error(advantage: float | None) -> None:
    idle = [replace(one, turns=[said("reasoner", advantage), said("actor", advantage)]) for one in healthy()]
    level, text = only(found(idle))
    assert level == "error" and "no trained token has an advantage" in text


def test_credit_that_only_a_frozen_role_gets_is_an_error() -> None:
    one = [replace(e, turns=[said("reasoner"), said("actor", 0.0)]) for e in healthy()]
    assert only(found(one, trained=frozenset(["doer"])))[0] == "error"


def test_a_trained_role_without_credit_is_a_warning_where_another_has_some() -> None:
    one = [replace(e, turns=[said("reasoner"), said("actor", 0.0)]) for e in healthy()]
    level, text = only(found(one))
    assert level == "warning" and text.startswith("no token of actor has an advantage")


def test_a_frozen_role_needs_no_credit() -> None:
    one = [replace(e, turns=[said("reasoner", None), said("actor")]) for e in healthy()]
    assert found(one, trained=frozenset(["doer"])) == []


def test_turns_that_are_mostly_cut_name_the_key_to_raise() -> None:
    cut = [replace(e, turns=[said("reasoner", stop="length"), said("actor")]) for e in healthy()]
    level, text = only(found(cut))
    assert level == "warning" and text.startswith("100% of reasoner's turns") and "roles.reasoner.max_tokens" in text


def test_empty_turns_are_counted() -> None:
    one, two = healthy()
    two.turns[1] = said("actor", text=" \n")
    assert only(found([one, two])) == ("warning", "1 of 2 turns of actor are empty")


def test_groups_of_one_are_counted() -> None:
    level, text = only(found(healthy(), group_sizes=[1, 3, 3], credit={"groups/constant": 1.0}))
    assert level == "warning" and text.startswith("1 of 3 groups have one member")


def test_mostly_constant_groups_are_a_warning_and_a_few_are_not() -> None:
    level, text = only(found(healthy(), group_sizes=[4, 4, 4], credit={"groups/constant": 2.0}))
    assert level == "warning" and text.startswith("in 2 of 3 groups all rewards are equal")
    assert found(healthy(), group_sizes=[4, 4, 4], credit={"groups/constant": 1.0}) == []


def test_a_sampler_that_disagrees_with_the_learner_is_named() -> None:
    level, text = only(found(healthy(), gaps={"doer": Gap(0.3, 2.0), "thinker": Gap(1e-6, 1e-5)}))
    assert level == "warning" and text.startswith("doer: the log-prob gap of sampler and learner is 0.3 nats")


def test_answers_that_were_too_much_for_the_grader_are_counted() -> None:
    one, two = healthy()
    two.metrics["grader_timeouts"] = 1.0
    failed = Episode("f", one.task, 0, metrics={"grader_timeouts": 2.0}, error="…", error_kind="GraderTimeout")
    of_failures, of_graders = found([one, two, failed])
    assert of_failures.text.startswith("1 of 3 episodes failed (1 GraderTimeout)")
    assert of_graders.level == "warning" and of_graders.text.startswith("the grader was killed 3 times")


def test_errors_come_first_under_the_count() -> None:
    listed = problems([Finding("warning", "later"), Finding("error", "sooner")]).plain
    assert listed == "2 problems\n  error: sooner\n  warning: later"


@pytest.fixture
def run(tmp_path: Path, model_folder: Callable[[str], Path]) -> Run:
    return build(load(game(tmp_path, model_folder("llama"))), tmp_path / "run", console=False)


def test_a_dry_run_plays_the_first_step_and_changes_nothing(run: Run, tmp_path: Path) -> None:
    weights = [p.clone() for learner in run.learners.values() for p in learner.parameters().values()]
    dry = dry_run(run, tasks=3, repeats=4)
    assert [e.task for e in dry.episodes[::4]] == run.tasks.at_step(0)
    assert sorted(dry.group_sizes) == [4] * 6  # a group for each task and role
    assert not (tmp_path / "run").exists()
    after = [p for learner in run.learners.values() for p in learner.parameters().values()]
    assert all(torch.equal(old, new) for old, new in zip(weights, after, strict=True))


def test_a_dry_run_shows_what_the_model_really_reads(run: Run) -> None:
    dry = dry_run(run, tasks=1, repeats=2)
    read, said_, _ = dry.dialogue["actor"]
    first = dry.episodes[0]
    assert read.startswith("<|im_start|>user\n") and read.endswith("<|im_end|>\n<|im_start|>assistant\n")
    assert first.task.prompt in read and first.turns[0].text in read and first.turns[1].text in said_


def test_sampler_and_learner_agree(run: Run) -> None:
    gaps = dry_run(run, tasks=3, repeats=4).gaps
    assert set(gaps) == {"thinker", "doer"} and all(gap.max < 1e-4 for gap in gaps.values())


def test_a_step_is_estimated_from_the_share_that_was_played(run: Run) -> None:
    dry = dry_run(run, tasks=1, repeats=4)
    spoken = sum(len(turn.response_ids) for one in dry.episodes for turn in one.turns)
    assert dry.tokens_per_step == 3 * spoken  # the config plays three tasks a step
    assert dry.seconds_per_step > 0


def test_a_few_episodes_that_earn_the_same_are_too_few_to_tell() -> None:
    same = [
        episode([said("reasoner", 0.0), said("actor", 0.0)], reward=0.0, task=task, repeat=repeat)
        for task in "abcd"
        for repeat in range(4)
    ]
    few = [finding for finding in found(same[:15]) if "15 episodes are too few to know" in finding.text]
    assert [finding.level for finding in few] == ["warning"]
    assert [f.level for f in found(same) if "no trained token has an advantage" in f.text] == ["error"]
