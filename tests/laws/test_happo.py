"""Laws of updates one after the other: HAPPO's factor, and who is who when policies or roles are one."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from coterie.algorithms.base import Algorithm
from coterie.algorithms.happo import Happo
from coterie.algorithms.ppo import Ppo
from coterie.config import ConfigError
from coterie.config.conflicts import check_conflicts
from coterie.learners.batch import make_batches
from coterie.training import checkpoint
from coterie.training.loop import Run, train
from coterie.types import Batch, Episode, Loss, Measure, Metrics
from tests.episodes import random_episodes
from tests.learners import gradients, learner
from tests.runs import naming_config, started, trained, written

Folder = Callable[[str], Path]
POLICIES = ("one", "two", "three")


@dataclass
class Drifts:
    """A learner whose log-probs move at random when it is fitted, and who tells what it was fitted on."""

    policy: str
    diary: list[tuple[str, Batch]]
    by: float
    frozen: bool = False
    version: int = 0

    def logprobs(self, batch: Batch, reference: bool = False) -> Tensor:
        assert self.version > 0, "old log-probs are read before"
        return batch.old_logprobs + drift(self.policy, batch, self.by)

    def fit_together(self, jobs: Sequence[tuple[Any, Batch, Tensor, Loss, Measure]]) -> list[Metrics]:
        return [learner.fit(*job) for learner, *job in jobs]

    def fit(self, batch: Batch, weights: Tensor, loss: Loss, measure: Measure) -> Metrics:
        self.diary.append((self.policy, batch))
        self.version += 1
        return {"loss": 0.0, "logprob_gap": 0.0, "logprob_gap_max": 0.0, "kl_step": 0.0}


def drift(policy: str, batch: Batch, by: float) -> Tensor:
    draw = torch.Generator().manual_seed(POLICIES.index(policy))
    return by * torch.randn(len(batch), generator=draw, dtype=torch.float64)


def judged(seed: int) -> tuple[list[Episode], dict[str, Batch]]:
    """Random conversations, of which most turns are judged; a role may be played by several policies."""
    episodes = random_episodes(seed, count=8, policies=POLICIES)
    draw = torch.Generator().manual_seed(seed)
    for spoken in (t for e in episodes for t in e.turns):
        size = len(spoken.response_ids)
        spoken.old_logprobs = -torch.rand(size, generator=draw)
        if float(torch.rand(1, generator=draw)) < 0.9:
            spoken.advantages = torch.randn(size, generator=draw)
    batches = make_batches(episodes)
    for batch in batches.values():
        batch.advantages, batch.old_logprobs = batch.advantages.double(), batch.old_logprobs.double()
    return episodes, batches


def slow_factor(batches: dict[str, Batch], before: list[str], episode: int, role: int, by: float, most: float) -> float:
    """Π π_new/π_old over every token of the policies before, of that episode and another role."""
    log = 0.0
    for policy in before:
        batch = batches[policy]
        moved = drift(policy, batch, by)
        for t in range(len(batch)):
            if batch.mask[t] and int(batch.episode[t]) == episode and int(batch.role[t]) != role:
                log += float(moved[t])
    return math.exp(min(max(log, -math.log(most)), math.log(most)))


@pytest.mark.parametrize("by", [0.05, 2.0])
@pytest.mark.parametrize("seed", range(5))
def test_an_advantage_of_happo_carries_how_far_the_others_have_moved(seed: int, by: float) -> None:
    _, batches = judged(seed)
    diary: list[tuple[str, Batch]] = []
    learners = {policy: Drifts(policy, diary, by) for policy in POLICIES}
    algorithm = Happo(max_factor=3.0)
    metrics = algorithm.update(learners, batches, random.Random(seed), step=0)  # type: ignore[arg-type]
    order = [policy for policy, _ in diary]
    assert sorted(order) == sorted(batches)
    for place, (policy, given) in enumerate(diary):
        own = batches[policy]
        said = own.mask.nonzero()[:, 0].tolist()
        factors = [slow_factor(batches, order[:place], int(own.episode[t]), int(own.role[t]), by, 3.0) for t in said]
        expected = own.advantages[said] * torch.tensor(factors, dtype=torch.float64)
        torch.testing.assert_close(given.advantages[said], expected)
        assert metrics[f"{policy}/factor"] == pytest.approx(sum(factors) / len(factors))
        held = sum(math.isclose(abs(math.log(f)), math.log(3.0)) for f in factors) / len(factors)
        assert metrics[f"{policy}/factor_held"] == pytest.approx(held)


def test_the_factor_is_clamped_like_every_ratio_where_its_own_limit_is_higher() -> None:
    _, batches = judged(0)
    diary: list[tuple[str, Batch]] = []
    learners = {policy: Drifts(policy, diary, by=200.0) for policy in POLICIES}
    metrics = Happo(max_factor=1e30).update(learners, batches, random.Random(0), step=0)  # type: ignore[arg-type]
    factors = [(given.advantages / batches[policy].advantages)[batches[policy].mask] for policy, given in diary]
    assert float(torch.cat(factors).max()) == pytest.approx(math.exp(20.0))
    assert all(metrics[f"{policy}/factor"] <= math.exp(20.0) for policy in batches)


def test_the_order_of_happo_changes_from_step_to_step_and_is_drawn_from_the_run_s_stream() -> None:
    def orders(seed: int) -> list[list[str]]:
        _, batches = judged(0)
        rng, drawn = random.Random(seed), []
        for step in range(6):
            diary: list[tuple[str, Batch]] = []
            Happo().update({p: Drifts(p, diary, 0.1) for p in POLICIES}, batches, rng, step)  # type: ignore[misc]
            drawn.append([policy for policy, _ in diary])
        return drawn

    assert orders(1) == orders(1) != orders(2)
    assert len({tuple(order) for order in orders(1)}) > 1


def test_a_policy_that_does_not_learn_has_no_part_in_happo_s_factor() -> None:
    _, batches = judged(1)
    diary: list[tuple[str, Batch]] = []
    learners = {policy: Drifts(policy, diary, 1.0, frozen=policy != "two") for policy in POLICIES}
    Happo().update(learners, batches, random.Random(0), step=0)  # type: ignore[arg-type]
    (policy, given), *others = diary
    assert policy == "two" and not others and torch.equal(given.advantages, batches["two"].advantages)


# Real runs


def config(model: Path, algorithm: str, roles: dict[str, str], **options: Any) -> dict[str, Any]:
    """Two rounds, judged by one critic over the joint context, whatever the algorithm."""
    critic = {"sees": "joint", "model": str(model), "lora": {"rank": 4}, "lr": 1e-2}
    tree = naming_config(model, steps=2, tasks_per_step=1, critics={"team": critic}, roles=roles, eval={"tasks": 1})
    tree["policies"] = {name: tree["policies"]["left"] for name in sorted(set(roles.values()))}
    tree["workflow"] |= {"order": list(roles), "rounds": 2}
    return tree | {"algorithm": {"name": algorithm, "epochs": 2, "minibatches": 2, **options}}


def weights(run: Run) -> dict[str, Tensor]:
    """All that has been learned, by policies and by critics."""
    assert run.critic is not None
    learners = {**run.learners, **{name: judge.learner for name, judge in run.critic.critics.items()}}  # type: ignore[attr-defined]
    return {
        f"{owner} {name}": parameter.detach().clone()
        for owner, made in learners.items()
        for name, parameter in [
            *made.parameters().items(),
            *(made.value_head.named_parameters() if made.value_head else ()),
        ]
    }


def logged(run: Run) -> list[dict[str, float]]:
    return [json.loads(line) for line in (run.folder / "metrics.jsonl").read_text().splitlines()]


def assert_learned_the_same(runs: list[Run]) -> None:
    first = weights(runs[0])
    for run in runs[1:]:
        for name, parameter in weights(run).items():
            assert torch.equal(parameter, first[name]), (run.algorithm, name)


@pytest.mark.parametrize("level", ["token", "turn"])
def test_one_role_on_one_policy_makes_happo_mappo_ippo_and_ppo_one(
    level: str, model_folder: Folder, tmp_path: Path
) -> None:
    names = ("ppo", "ippo", "mappo", "happo")
    trees = {name: config(model_folder("llama"), name, {"left": "left"}, level=level) for name in names}
    runs = [trained(tree, tmp_path / name) for name, tree in trees.items()]
    assert_learned_the_same(runs)
    untrained = weights(started(trees["ppo"], tmp_path / "untrained"))
    assert any(not torch.equal(p, untrained[name]) for name, p in weights(runs[0]).items() if "left" in name)


def test_two_roles_on_one_policy_make_happo_mappo(model_folder: Folder, tmp_path: Path) -> None:
    roles = {"left": "both", "right": "both"}
    runs = [trained(config(model_folder("llama"), name, roles), tmp_path / name) for name in ("mappo", "happo")]
    assert_learned_the_same(runs)
    assert {row["both/factor"] for row in logged(runs[1]) if "both/factor" in row} == {1.0}


def test_two_policies_make_happo_another_algorithm_than_mappo(model_folder: Folder, tmp_path: Path) -> None:
    roles = {"left": "left", "right": "right"}
    mappo, happo = (trained(config(model_folder("llama"), name, roles), tmp_path / name) for name in ("mappo", "happo"))
    for row in logged(happo)[:2]:
        factors = sorted([row["left/factor"], row["right/factor"]], key=lambda factor: factor != 1.0)
        assert factors[0] == 1.0 != factors[1]
    learned = weights(happo)
    assert any(not torch.equal(parameter, learned[name]) for name, parameter in weights(mappo).items())


def test_two_roles_on_one_policy_are_one_update_over_both(model_folder: Folder) -> None:
    """The gradient of the union is the sum of the roles' own, each token weighing what it weighs in the union."""
    made = learner(model_folder("llama"), head=True)
    batch = make_batches(random_episodes(3), require_advantages=False)["policy"]
    draw = torch.Generator().manual_seed(0)
    batch.advantages, batch.returns = torch.randn(2, len(batch), generator=draw)
    algorithm = Ppo(epochs=2)
    all_weights = algorithm.loss_weights(batch)
    whole = gradients(made, batch, all_weights, algorithm.loss)
    assert len({int(role) for role in batch.role[batch.mask]}) == 3
    by_role = [
        gradients(made, batch, torch.where(batch.role == role, all_weights, 0.0), algorithm.loss) for role in range(3)
    ]
    for name, gradient in whole.items():
        torch.testing.assert_close(gradient, sum(part[name] for part in by_role), atol=1e-6, rtol=1e-4)


# Before any update


@pytest.mark.parametrize("right", ["right", "left"], ids=["adapters", "one policy for both roles"])
@pytest.mark.parametrize("name", ["ppo", "happo"])
def test_old_and_reference_log_probs_are_taken_before_any_update_of_the_step(
    name: str, right: str, model_folder: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = config(model_folder("llama"), name, {"left": "left", "right": right}, kl=0.1)
    fitted: list[tuple[int, str, Batch]] = []
    train_policy = Algorithm.fit_policies

    def watched(self: Algorithm, made: Sequence[Any], batches: Sequence[Batch], rng: random.Random) -> list[Metrics]:
        fitted.extend((run.step, one.policy, replace(batch)) for one, batch in zip(made, batches, strict=True))
        return train_policy(self, made, batches, rng)

    monkeypatch.setattr(Algorithm, "fit_policies", watched)
    run = started(tree, tmp_path)
    train(run)
    before = started(tree, tmp_path)
    checkpoint.restore(before, checkpoint.find(tmp_path, "1"))
    second = [(policy, batch) for step, policy, batch in fitted if step == 1]
    assert sorted(policy for policy, _ in second) == sorted({"left", right})
    assert {batch.roles[int(role)] for _, batch in second for role in batch.role[batch.mask]} == {"left", "right"}
    for policy, batch in second:
        said = batch.mask
        old, reference = (before.learners[policy].logprobs(batch, reference=r) for r in (False, True))
        torch.testing.assert_close(batch.old_logprobs[said], old[said], atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(batch.ref_logprobs[said], reference[said], atol=1e-5, rtol=1e-5)
        after = run.learners[policy].logprobs(batch)
        assert float((after - old)[said].abs().max()) > 1e-2


def test_a_limit_of_the_factor_is_refused_where_there_is_no_factor(tmp_path: Path) -> None:
    tree = naming_config(tmp_path, algorithm={"name": "happo", "max_factor": 2.0})
    config = written(tree, tmp_path)
    check_conflicts(config)
    shared = {"policies": {"both": tree["policies"]["left"]}, "roles": {"left": "both", "right": "both"}}
    config = written(tree | shared, tmp_path)
    with pytest.raises(ConfigError, match=r"algorithm\.max_factor: has no effect: one policy trains"):
        check_conflicts(config)
