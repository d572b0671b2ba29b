"""`coterie check` finds what is wrong with a team, one planted mistake at a time, and nothing in a sound one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from coterie.check import DryRun, Finding, dry_run, findings
from coterie.check.echo_check import echoes
from coterie.check.findings import constant_roles
from coterie.cli.check_tables import dry_run as shown
from tests.episodes import episode, turn
from tests.planted import Says, honest, planted, right

Folder = Callable[[str], Path]


@pytest.fixture
def checked(model_folder: Folder, tmp_path: Path) -> Callable[..., tuple[DryRun, list[Finding]]]:
    def check(workflow: str, says: Says = honest, **changes: Any) -> tuple[DryRun, list[Finding]]:
        dry = dry_run(planted(tmp_path, model_folder("llama"), workflow, says, **changes), tasks=2, repeats=6)
        return dry, findings(dry)

    return check


Check = Callable[..., tuple[DryRun, list[Finding]]]


def only(found: list[Finding]) -> tuple[str, str]:
    assert len(found) == 1, found
    return found[0].level, found[0].text


def test_a_sound_team_has_no_findings(checked: Check) -> None:
    dry, found = checked("refine")
    assert found == []
    assert [probe.episode.reward for probe in dry.references] == [1.0, 1.0]
    assert max(probe.episode.reward for probe in dry.probes if probe.whole) == 0.0
    assert list(dry.verdicts) == ["evaluator"] and set(dry.verdicts["evaluator"]) == {True, False}
    assert len(list(shown(dry))) > 8


def test_a_reward_that_never_changes_is_an_error(checked: Check) -> None:
    _, found = checked("Pays")
    errors = [finding.text for finding in found if finding.level == "error"]
    assert any(text.startswith("the reward of optimizer is 0.5 for every reply") for text in errors), found
    assert any("is constant: always 0.5" in finding.text for finding in found), found


def test_a_reward_that_never_changes_is_named_though_one_reference_answer_is_not_known(checked: Check) -> None:
    dry, _ = checked("Pays")
    dry.references[0].episode.reward = 0.5
    assert any(
        finding.text.startswith("the reward of optimizer is 0.5 for every reply") for finding in constant_roles(dry)
    )


def test_a_parser_that_strips_what_the_grader_needs_is_an_error_with_the_text_it_passed_on(checked: Check) -> None:
    dry, found = checked("Strips")
    hidden = [finding for finding in found if "the workflow hides answers from the grader" in finding.text]
    level, text = only(hidden)
    assert level == "error" and "gets 1 when graded directly and 0 through the workflow; it returned ''" in text
    assert dry.references[0].direct_reward == 1.0


def test_a_reward_that_does_not_know_the_reference_is_an_error(checked: Check, tmp_path: Path) -> None:
    tmp_path.mkdir(exist_ok=True)
    (tmp_path / "odd.py").write_text("def odd(answer, truth):\n    return 0.1 * (len(answer) % 3)\n")
    _, found = checked("Alone", reward=f"{tmp_path / 'odd.py'}:odd")
    assert ("error", True) in [(f.level, f.text.startswith("the reference answer of 2 of 2 tasks")) for f in found], (
        found
    )


def test_a_reward_that_pays_for_silence_is_an_error(checked: Check, tmp_path: Path) -> None:
    (tmp_path / "kind.py").write_text("def kind(answer, truth):\n    return float(answer != '77')\n")
    _, found = checked("Alone", reward=f"{tmp_path / 'kind.py'}:kind")
    errors = [finding.text for finding in found if finding.level == "error"]
    assert any(text.startswith("an empty reply gets as much reward as the reference in 2 of 2") for text in errors), (
        found
    )


def test_a_reward_of_form_alone_has_nothing_to_do_with_the_reference(checked: Check) -> None:
    dry, found = checked("Alone", reward={"name": "format", "pattern": "7"})
    assert dry.references == [] and [finding.level for finding in found if finding.level == "error"] == []


def test_a_role_that_repeats_what_it_reads_is_named(checked: Check) -> None:
    def parrot(policy: str, read: str, seed: int) -> str:
        if policy == "evaluator":
            said = " ".join(read.split("user\n")[-1].split("<|im_end|>")[0].split()[:12])
            return f"{said}\nVerdict: {'correct' if seed // 8 % 2 else 'incorrect'}"
        return honest(policy, read, seed)

    dry, found = checked("refine", parrot)
    level, text = only(found)
    assert level == "warning" and text.startswith("evaluator repeats its prompt: ")
    assert "optimizer" not in dry.echoes  # a number is too short to tell


def test_a_judge_that_always_agrees_is_named(checked: Check) -> None:
    def agrees(policy: str, read: str, seed: int) -> str:
        return "Fine. Verdict: correct" if policy == "evaluator" else honest(policy, read, seed)

    _, found = checked("refine", agrees)
    level, text = only(found)
    assert level == "warning" and text.startswith("evaluator says yes in all 12 verdicts")


def test_a_judge_that_nobody_can_read_is_named(checked: Check) -> None:
    def mumbles(policy: str, read: str, seed: int) -> str:
        return "Perhaps so." if policy == "evaluator" else honest(policy, read, seed)

    _, found = checked("refine", mumbles)
    assert any(finding.text.startswith("evaluator gives a verdict in 0 of") for finding in found), found


def test_an_answer_on_which_the_workflow_fails_is_named(checked: Check) -> None:
    _, found = checked("Stumbles")
    level, text = only(found)
    assert level == "warning" and text.startswith("an empty reply makes the episode fail ('IndexError")


def test_tasks_that_are_only_too_hard_are_told_from_rewards_out_of_reach(checked: Check) -> None:
    _, found = checked("Alone", lambda policy, read, seed: str(int(right(read)) + 1))
    texts = " ".join(finding.text for finding in found)
    assert "every episode has the reward 0; the reference answer gets 1, so a reward is possible" in texts
    assert "for every reply" not in texts


def test_an_echo_is_counted_in_runs_of_four_words() -> None:
    one = turn("solver")
    one.text = "a b c d e f g h"
    assert echoes([episode([one])], lambda _: "x a b c d e y") == {"solver": pytest.approx(2 / 5)}


def test_prompts_that_fill_the_context_are_an_error(checked: Check) -> None:
    dry, _ = checked("Alone")
    for one in dry.turns["optimizer"][:2]:
        one.response_ids, one.stop = (), "length"
    assert any(
        finding.level == "error" and "2 of 12 turns of optimizer had no room for a token" in finding.text
        for finding in findings(dry)
    )


@pytest.mark.parametrize(
    ("workflow", "said"),
    [
        ("Strips", "the workflow hides answers from the grader"),
        ("Pays", "the reward of optimizer is 0.5 for every reply"),
    ],
)
def test_what_a_single_task_shows_is_too_little_for_an_error(
    workflow: str, said: str, model_folder: Folder, tmp_path: Path
) -> None:
    found = findings(dry_run(planted(tmp_path, model_folder("llama"), workflow, honest), tasks=1, repeats=6))
    assert [finding for finding in found if finding.level == "error"] == []
    assert any(said in finding.text and "1 task is too few to be sure" in finding.text for finding in found), found
