"""Laws of taking turns at learning: by policy, by round, and with a policy for each round."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from dataclasses import astuple
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from torch import Tensor

from coterie.check import dry_run, findings
from coterie.cli.report import plan
from coterie.config import ConfigError, dump, load
from coterie.config.conflicts import check_conflicts
from coterie.episode_rows import read_episodes
from coterie.learners.critics import Critics
from coterie.rollout.agent import Player
from coterie.training.loop import Run, training_step
from coterie.types import Sampling
from tests.runs import naming_config, resumed, started, trained, written

Folder = Callable[[str], Path]


def weights(run: Run) -> dict[str, list[Tensor]]:
    """Of every policy and of every critic."""
    learners = dict(run.learners)
    if isinstance(run.critic, Critics):
        learners |= {f"critic {name}": judge.learner for name, judge in run.critic.critics.items()}
    heads = {
        name: list(learner.value_head.parameters()) if learner.value_head else [] for name, learner in learners.items()
    }
    return {
        name: [p.detach().clone() for p in (*learner.parameters().values(), *heads[name])]
        for name, learner in learners.items()
    }


def who_moved(run: Run, steps: int) -> list[set[str]]:
    """Step by step those whose weights are not what they were, to the bit."""
    moved = []
    for _ in range(steps):
        before = weights(run)
        with run.log.step(run.step + 1) as log:
            training_step(run, log)
        run.step += 1
        after = weights(run)
        moved.append({n for n in before if any(map(_differ, before[n], after[n]))})
    return moved


def _differ(one: Tensor, other: Tensor) -> bool:
    return not torch.equal(one, other)


# By policy


@pytest.mark.parametrize("algorithm", ["grpo", "ppo"])
def test_only_the_policy_whose_turn_it_is_moves(algorithm: str, model_folder: Folder, tmp_path: Path) -> None:
    tree = naming_config(model_folder("llama"), steps=5, algorithm={"name": algorithm, "rotate": 2})
    moved = who_moved(started(tree, tmp_path), 5)
    assert moved == [{"left"}, {"left"}, {"right"}, {"right"}, {"left"}]


def test_a_frozen_policy_has_no_turn(model_folder: Folder, tmp_path: Path) -> None:
    tree = naming_config(model_folder("llama"), steps=4, algorithm={"name": "grpo", "rotate": 1})
    tree["policies"] |= {"third": tree["policies"]["left"] | {"frozen": True, "lr": 1e-4}}
    tree["roles"] |= {"third": "third"}
    tree["workflow"] |= {"order": ["left", "third", "right"]}
    tree["env"] |= {"letters": {"left": "e", "right": "a", "third": "o"}}
    assert who_moved(started(tree, tmp_path), 4) == [{"left"}, {"right"}, {"left"}, {"right"}]


def test_critics_learn_whoever_s_turn_it_is(model_folder: Folder, tmp_path: Path) -> None:
    model = str(model_folder("llama"))
    critics = {role: {"roles": [role], "model": model, "lora": {"rank": 2}} for role in ("left", "right")}
    tree = naming_config(model_folder("llama"), steps=3, algorithm={"name": "ippo", "rotate": 1}, critics=critics)
    always = {"critic left", "critic right"}
    assert who_moved(started(tree, tmp_path), 3) == [always | {"left"}, always | {"right"}, always | {"left"}]


def test_a_rotation_goes_on_where_it_was_after_a_resume(model_folder: Folder, tmp_path: Path) -> None:
    tree = naming_config(model_folder("llama"), steps=5, algorithm={"name": "grpo", "rotate": 2})
    straight = trained(tree, tmp_path / "straight")
    trained(tree | {"steps": 3}, tmp_path / "cut")
    again = resumed(tree, tmp_path / "cut")
    assert [learner.version for learner in again.learners.values()] == [3, 2]
    assert all(
        not _differ(a, b) for n, some in weights(straight).items() for a, b in zip(some, weights(again)[n], strict=True)
    )


def test_a_lone_policy_has_nobody_to_take_turns_with(tmp_path: Path) -> None:
    tree = naming_config(tmp_path, algorithm={"name": "grpo", "rotate": 2})
    tree |= {"policies": {"both": tree["policies"]["left"]}, "roles": {"left": "both", "right": "both"}}
    config = written(tree, tmp_path)
    with pytest.raises(ConfigError, match=r"algorithm\.rotate: has no effect: 1 policy trains"):
        check_conflicts(config)


@pytest.mark.parametrize(("steps", "waiting"), [(12, ["right"]), (13, [])])
def test_a_policy_that_would_never_have_its_turn_is_told_of(
    steps: int, waiting: list[str], model_folder: Folder, tmp_path: Path
) -> None:
    tree = naming_config(model_folder("llama"), steps=steps, algorithm={"name": "grpo", "rotate": 12})
    dry = dry_run(started(tree, tmp_path), tasks=1, repeats=2)
    assert [text for _, text in map(astuple, findings(dry)) if "rotate" in text] == [
        f"{policy} will not be trained: `algorithm.rotate` reaches it after the last step" for policy in waiting
    ]


# By round


def rounds_config(model: Path, **changes: Any) -> dict[str, Any]:
    tree = naming_config(model, **changes)
    return tree | {"workflow": tree["workflow"] | {"rounds": 3}}


@pytest.mark.parametrize("algorithm", ["grpo", "ppo"])
def test_only_turns_of_the_round_whose_turn_it_is_are_learned_from(
    algorithm: str, model_folder: Folder, tmp_path: Path
) -> None:
    tree = rounds_config(model_folder("llama"), steps=5, algorithm={"name": algorithm, "rotate_turns": 2})
    tree["sampling"] = {"max_tokens": 3}
    trained(tree, tmp_path)
    for step in range(5):
        turns = [t for e in read_episodes(tmp_path / f"episodes/{step + 1:06d}.jsonl.gz") for t in e.turns]
        learned = {t.round for t in turns if t.advantages is not None}
        assert learned == {step // 2 % 3}
        assert {t.round for t in turns} == {0, 1, 2}


# A policy for each round


def test_a_seat_is_played_by_the_nth_policy_and_the_last_one_plays_the_rest() -> None:
    player = Player("first", Sampling(), ("second", "rest"))
    assert [player.policy_at(nth) for nth in range(5)] == ["first", "second", "rest", "rest", "rest"]
    assert [Player("first", Sampling()).policy_at(nth) for nth in range(2)] == ["first", "first"]


def test_a_role_may_have_a_policy_for_its_first_turn_and_one_for_later_turns(
    model_folder: Folder, tmp_path: Path
) -> None:
    tree = rounds_config(model_folder("llama"), steps=2, roles={"left": {"policy": ["left", "right"]}, "right": "left"})
    run = trained(tree, tmp_path)
    for played in read_episodes(tmp_path / "episodes/000002.jsonl.gz"):
        assert [t.policy for t in played.turns if t.role == "left"] == ["left", "right", "right"]
        assert [t.policy for t in played.turns if t.role == "right"] == ["left"] * 3
        first, second, _ = (t for t in played.turns if t.role == "left")
        whole = first.prompt_ids + first.response_ids
        assert second.prompt_ids[: len(whole)] == whole  # the same tokenizer, so the conversation goes on
    for policy in ("left", "right"):
        assert run.learners[policy].version == 2
    rows = [line for line in (tmp_path / "metrics.jsonl").read_text().splitlines() if "logprob_gap_max" in line]
    assert len(rows) == 2
    assert [json.loads(row)["stale"] for row in rows] == [0.0, 0.0]
    assert all(json.loads(row)[f"{policy}/logprob_gap_max"] < 1e-4 for row in rows for policy in ("left", "right"))


def test_turn_by_turn_training_of_a_policy_for_each_round_moves_one_at_a_time(
    model_folder: Folder, tmp_path: Path
) -> None:
    tree = rounds_config(model_folder("llama"), steps=3, algorithm={"name": "grpo", "rotate_turns": 1})
    names = ("first", "second", "later")
    tree |= {
        "policies": {name: tree["policies"]["left"] for name in names},
        "roles": {role: {"policy": list(names)} for role in ("left", "right")},
    }
    assert who_moved(started(tree, tmp_path), 3) == [{"first"}, {"second"}, {"later"}]


def test_policies_of_a_role_with_another_tokenizer_read_the_conversation_anew(
    model_folder: Folder, tmp_path: Path
) -> None:
    tree = rounds_config(model_folder("llama"), steps=1, roles={"left": {"policy": ["left", "right"]}, "right": "left"})
    tree["policies"] |= {"right": tree["policies"]["right"] | {"model": str(model_folder("gemma3"))}}
    run = trained(tree, tmp_path)
    tokenizer = run.learners["right"].base.tokenizer
    for played in read_episodes(tmp_path / "episodes/000001.jsonl.gz"):
        first, second, _ = (t for t in played.turns if t.role == "left")
        assert second.policy == "right"
        assert first.text in tokenizer.decode(list(second.prompt_ids))


def test_a_list_of_policies_is_checked_and_shown_and_kept(tmp_path: Path) -> None:
    tree = naming_config(tmp_path, roles={"left": {"policy": ["left", "rigth"]}, "right": "left"})
    config = written(tree, tmp_path)
    with pytest.raises(ConfigError) as refused:
        check_conflicts(config)
    assert "roles.left.policy: no policy is called 'rigth'; there is left, right" in str(refused.value)
    assert "policies.right: no role plays it" in str(refused.value)
    tree["roles"]["left"] = {"policy": ["left", "right"]}
    config = written(tree, tmp_path)
    check_conflicts(config)
    (tmp_path / "config.yaml").write_text(dump(config))
    assert load(tmp_path / "config.yaml").roles == config.roles
    console = Console(width=200, record=True, file=io.StringIO())
    for part in plan(config):
        console.print(part)
    shown = console.export_text()
    assert "left, turn 1" in shown and "left, turn 2" in shown
    tree["roles"]["left"] = {"policy": []}
    with pytest.raises(ConfigError, match=r"roles\.left\.policy: got the list \[\], expected"):
        written(tree, tmp_path)
