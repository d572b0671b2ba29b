"""Judging stored episodes again: deterministic, the same under the same rules, and only then."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from coterie.analysis.replay import ReplayedTurn, replay
from coterie.cli.app import app
from coterie.config import ConfigError, dump, load
from coterie.episode_rows import read_episodes
from coterie.types import Turn
from tests.runs import naming_config, trained, written

Folder = Callable[..., Path]


def played(model: Path, folder: Path, **changes: object) -> Path:
    trained(naming_config(model, steps=2, **changes), folder)
    return folder


def judged(folder: Path, *changes: str) -> list[ReplayedTurn]:
    return list(replay(folder, load(folder / "config.yaml", changes), rescore=False))


def test_the_same_rules_give_the_same_advantages(model_folder: Folder, tmp_path: Path) -> None:
    verdicts = judged(played(model_folder("llama"), tmp_path))
    assert len(verdicts) == 2 * 2 * 4 * 2  # steps, tasks, episodes, roles
    assert any(one.before for one in verdicts)
    assert [one.after for one in verdicts] == pytest.approx([one.before for one in verdicts], abs=1e-5)


def test_other_rules_give_other_advantages_and_always_the_same_ones(model_folder: Folder, tmp_path: Path) -> None:
    folder = played(model_folder("llama"), tmp_path)
    once, twice = (judged(folder, "algorithm=rloo") for _ in range(2))
    assert [one.after for one in once] == [one.after for one in twice]
    for one in once:
        peers = [p for p in once if (p.step, p.turn.role) == (one.step, one.turn.role)]
        others = [p.reward for p in peers if p.episode.task.id == one.episode.task.id and p is not one]
        assert one.after == pytest.approx(one.reward - sum(others) / len(others), abs=1e-6)


def test_an_algorithm_that_needs_what_was_not_taken_down_says_so(model_folder: Folder, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="Ppo needs the values of left's turns"):
        judged(played(model_folder("llama"), tmp_path), "algorithm=ppo")


def test_values_are_taken_down_and_judged_again(model_folder: Folder, tmp_path: Path) -> None:
    verdicts = judged(played(model_folder("llama"), tmp_path, algorithm={"name": "ppo"}))
    assert [one.after for one in verdicts] == pytest.approx([one.before for one in verdicts], abs=1e-4)


def test_a_run_that_learned_round_by_round_is_judged_round_by_round(model_folder: Folder, tmp_path: Path) -> None:
    tree = naming_config(model_folder("llama"))
    workflow = tree["workflow"] | {"rounds": 2}
    folder = played(model_folder("llama"), tmp_path, workflow=workflow, algorithm={"name": "grpo", "rotate_turns": 1})
    verdicts = judged(folder)
    assert {(one.step, one.turn.round) for one in verdicts if one.after is not None} == {(1, 0), (2, 1)}
    assert [one.after is None for one in verdicts] == [one.before is None for one in verdicts]
    both = [(one.before, one.after) for one in verdicts if one.before is not None and one.after is not None]
    assert [after for _, after in both] == pytest.approx([before for before, _ in both], abs=1e-5)
    rested = judged(folder, "algorithm.rotate_turns=2")
    assert {one.turn.round for one in rested if one.after is not None} == {0}


def test_a_difference_that_was_not_played_cannot_be_told(model_folder: Folder, tmp_path: Path) -> None:
    folder = played(model_folder("llama"), tmp_path / "plain")
    for by in ("replay", "shapley"):
        with pytest.raises(
            ConfigError, match=r"Difference needs .* episodes without 'left', .* credit\.by=leave_one_out"
        ):
            judged(folder, f"credit={{name: difference, by: {by}}}")
    assert any(one.after for one in judged(folder, "credit={name: difference, by: leave_one_out}"))
    silenced = played(model_folder("llama"), tmp_path / "silenced", credit="difference")
    verdicts = judged(silenced)
    assert [one.after for one in verdicts] == pytest.approx([one.before for one in verdicts], abs=1e-5)
    with pytest.raises(ConfigError, match="episodes without 'left', 'right', which this run did not play"):
        judged(silenced, "credit.by=shapley")
    with pytest.raises(ConfigError, match=r"credit\.default: has no effect here"):
        judged(silenced, "credit.default=Hm.")


@pytest.mark.parametrize(
    "change",
    ["algorithm.truncate=2", "algorithm={name: at_grpo, siblings: 3}", "algorithm.kl=0.1", "algorithm.rotate=1",
     "algorithm.roles={left: {reduce: turn}}"],
)  # fmt: skip
def test_a_change_that_no_advantage_depends_on_is_refused(change: str, model_folder: Folder, tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(dump(written(naming_config(model_folder("llama")), tmp_path)))
    with pytest.raises(ConfigError, match=r"algorithm\..*: has no effect here: advantages do not"):
        judged(tmp_path, change)


def test_answers_are_graded_again_by_another_reward(model_folder: Folder, tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text('{"question": "q", "answer": "e"}\n' * 4)
    env = {"name": "rows", "train": str(tmp_path / "rows.jsonl"), "test": str(tmp_path / "rows.jsonl")}
    folder = played(model_folder("llama"), tmp_path / "run", env=env, reward="exact")
    (tmp_path / "long.py").write_text("def long(answer, truth):\n    return float(len(answer))\n")
    changes = [f"reward={tmp_path / 'long.py'}:long"]
    out = tmp_path / "changes.jsonl"
    result = CliRunner().invoke(app, ["replay", str(folder), *changes, "--out", str(out)])
    assert result.exit_code == 0, result.output
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert {row["reward now"] for row in rows} != {row["reward"] for row in rows}
    refused = CliRunner().invoke(app, ["replay", str(folder), "steps=3"])
    assert refused.exit_code == 2 and "cannot change in a replay" in refused.output


@pytest.fixture(scope="module")
def refined(model_folder: Folder, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run of a team whose workflow judges every turn, when all is said."""
    folder = tmp_path_factory.mktemp("refined")
    (folder / "rows.jsonl").write_text('{"question": "q", "answer": "e"}\n' * 4)
    (folder / "long.py").write_text("def long(answer, truth):\n    return float(len(answer))\n")
    tree = naming_config(
        model_folder("llama"),
        steps=1,
        env={"name": "rows", "train": str(folder / "rows.jsonl"), "test": str(folder / "rows.jsonl")},
        reward="exact",
        workflow={"name": "refine", "max_rounds": 2},
        roles={"optimizer": "left", "evaluator": "right"},
        credit="own",
        algorithm={"name": "grpo", "gamma_turn": 0},
        eval={"tasks": 1},
    )
    trained(tree, folder / "run")
    return folder / "run"


def judged_by(folder: Path, *changes: str) -> list[Turn]:
    return [one.turn for one in replay(folder, load(folder / "config.yaml", changes), rescore=True)]


def test_turns_that_a_workflow_judged_are_judged_again_under_another_reward(refined: Path) -> None:
    turns = judged_by(refined, f"reward={refined.parent / 'long.py'}:long")
    answers = [turn for turn in turns if turn.role == "optimizer"]
    assert len(answers) >= 8 and any(turn.reward for turn in answers)
    assert [turn.reward for turn in answers] == [len(turn.text) for turn in answers]
    assert {turn.reward for turn in turns if turn.role == "evaluator"} <= {0.0, 1.0}


def test_the_same_reward_gives_every_turn_what_it_had(refined: Path) -> None:
    stored = [turn.reward for e in read_episodes(refined / "episodes" / "000001.jsonl.gz") for turn in e.turns]
    assert [turn.reward for turn in judged_by(refined, "reward=exact")] == stored


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ("workflow.prompt='Well, {question}'", "ValueError: turn 0 of optimizer got a different prompt"),
        ("workflow.max_rounds=9", "RuntimeError: left was called for a turn that is not recorded"),
    ],
)
def test_a_workflow_that_would_ask_something_else_is_refused(refined: Path, change: str, why: str) -> None:
    with pytest.raises(ConfigError, match=rf"reward: .* cannot be rescored by its workflow: {why}"):
        judged_by(refined, "reward=exact", change)
