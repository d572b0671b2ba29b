"""Rows of the failure table in docs/cluster.md, and runs of every kind, on a cluster of several raylets."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("ray", reason="Ray is not installed: pip install -e '.[ray]'")

from coterie.cluster.driver import Driver
from coterie.cluster.processes import ClusterFailed
from coterie.training.log import read_episodes
from coterie.training.loop import Run
from tests.clusters import end_learner, end_player, raylets, started_on_cluster, trained_on_cluster
from tests.laws.test_cluster import assert_same
from tests.laws.test_cluster import config as ppo
from tests.laws.test_parallel import assert_close, tokens
from tests.runs import naming_config, started, trained

pytestmark = pytest.mark.slow
Folder = Callable[[str], Path]
ROOT = Path(__file__).parents[2]


def grpo(model: Path) -> dict[str, Any]:
    return naming_config(model, steps=3)


def mappo(model: Path) -> dict[str, Any]:
    critics = {"team": {"model": str(model), "sees": "joint", "lora": {"rank": 2}}}
    return naming_config(model, steps=3, algorithm={"name": "mappo"}, critics=critics)


def opponents(model: Path) -> dict[str, Any]:
    pool = {"share": 0.6, "every": 1, "keep": 2}
    return naming_config(model, steps=4, opponents=pool, credit={"name": "difference"})


def qmix(model: Path) -> dict[str, Any]:
    return naming_config(model, steps=3, algorithm={"name": "qmix", "warmup": 1, "value_fits": 2})


RUNS = {"ppo": ppo, "grpo": grpo, "mappo": mappo, "opponents": opponents, "qmix": qmix}


@pytest.fixture(scope="module")
def ray_cluster() -> Iterator[Any]:
    with raylets(2) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def alone(model_folder: Folder, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Run]:
    """Each run in this one process."""
    done: dict[str, Run] = {}

    def make(kind: str) -> Run:
        if kind not in done:
            done[kind] = trained(RUNS[kind](model_folder("llama")), tmp_path_factory.mktemp(kind))
        return done[kind]

    return make


@pytest.mark.parametrize(("workers", "chunk"), [(1, 100), (2, 1), (3, 8)])
@pytest.mark.parametrize("kind", RUNS)
def test_every_kind_of_run_is_the_same_on_a_cluster(
    kind: str, workers: int, chunk: int, ray_cluster: Any, alone: Any, model_folder: Folder, tmp_path: Path
) -> None:
    tree = RUNS[kind](model_folder("llama"))
    weights = trained_on_cluster(tree, tmp_path, rollout={"workers": workers}, chunk=chunk)
    assert_same(weights, tmp_path, alone(kind))


def test_two_learners_learn_what_one_does(ray_cluster: Any, alone: Any, model_folder: Folder, tmp_path: Path) -> None:
    tree = ppo(model_folder("llama"))
    for policy in tree["policies"].values():
        policy["lr"] = 1e-3
    one, fresh = trained(tree, tmp_path / "one"), started(tree, tmp_path / "fresh")
    two = trained_on_cluster(tree, tmp_path / "two", learner={"workers": 2})
    for policy, weights in two.items():
        assert_close(weights, one.learners[policy].weights(), fresh.learners[policy].weights())
    assert tokens(tmp_path / "two") == tokens(tmp_path / "one")


ENDINGS: dict[str, Callable[[Driver], None]] = {
    "a rollout worker is killed": lambda driver: end_player(driver, play=3),
    "a rollout worker is stopped": lambda driver: end_player(driver, play=3, how=signal.SIGSTOP),
    "the learner is killed": lambda driver: end_learner(driver, fit=6),
    "the learner is stopped": lambda driver: end_learner(driver, fit=6, how=signal.SIGSTOP),
}


@pytest.mark.parametrize("ending", ENDINGS)
def test_whatever_ends_the_weights_are_the_same(
    ending: str, ray_cluster: Any, alone: Any, model_folder: Folder, tmp_path: Path
) -> None:
    tree = ppo(model_folder("llama")) | {"rollout": {"deadline": 3.0, "score_deadline": 0.5}}
    weights = trained_on_cluster(tree, tmp_path, ENDINGS[ending], rollout={"workers": 2}, chunk=4, patience=2.0)
    assert_same(weights, tmp_path, alone("ppo"))


@pytest.mark.parametrize("rank", [0, 1])
def test_two_learners_go_on_after_one_of_them_is_killed(
    rank: int, ray_cluster: Any, model_folder: Folder, tmp_path: Path
) -> None:
    tree, two = ppo(model_folder("llama")), {"workers": 2}
    straight = trained_on_cluster(tree, tmp_path / "straight", learner=two)
    killed = trained_on_cluster(tree, tmp_path / "killed", lambda d: end_learner(d, fit=6, rank=rank), learner=two)
    torch.testing.assert_close(killed, straight, rtol=0, atol=0)


def test_a_node_that_dies_takes_no_bit_with_it(
    ray_cluster: Any, alone: Any, model_folder: Folder, tmp_path: Path
) -> None:
    node = ray_cluster.add_node(num_cpus=4, object_store_memory=78 << 20, resources={"third": 1})

    def prepare(driver: Driver) -> None:
        threading.Timer(1.0, ray_cluster.remove_node, (node, False)).start()

    tree = ppo(model_folder("llama")) | {"steps": 6}
    six = trained(tree, tmp_path / "six")
    weights = trained_on_cluster(tree, tmp_path / "run", prepare, rollout={"workers": 6}, chunk=1)
    assert_same(weights, tmp_path / "run", six)


def test_learners_that_die_again_and_again_stop_the_run(ray_cluster: Any, model_folder: Folder, tmp_path: Path) -> None:
    def prepare(driver: Driver) -> None:
        for fit in (1, 2, 3):
            end_learner(driver, fit=fit)

    with pytest.raises(ClusterFailed, match=r"learner 0 \(process \d+ on .*lost 3 times after step 0"):
        trained_on_cluster(grpo(model_folder("llama")), tmp_path, prepare, restarts=2)


def test_a_killed_driver_is_resumed_to_the_bit(alone: Any, model_folder: Folder, tmp_path: Path) -> None:
    """Its workers end by themselves."""
    tree = ppo(model_folder("llama")) | {"name": "killed", "cluster": {"address": "local", "rollout": {"workers": 1}}}
    from tests.runs import written

    written(tree, tmp_path)
    train = [sys.executable, "-m", "coterie", "train"]
    first = subprocess.Popen([*train, str(tmp_path / "config-as-given.yaml"), "--out", str(tmp_path)], cwd=ROOT)
    while not (tmp_path / "killed" / "checkpoints" / "000001").is_dir():
        time.sleep(0.02)
    os.kill(first.pid, signal.SIGKILL)
    first.wait()
    subprocess.run([*train, "--resume", str(tmp_path / "killed")], cwd=ROOT, check=True)
    assert tokens(tmp_path / "killed") == tokens(alone("ppo").folder)


def test_twenty_kills_at_random_instants_change_no_bit(ray_cluster: Any, model_folder: Folder, tmp_path: Path) -> None:
    tree = ppo(model_folder("llama")) | {"steps": 12}
    straight = trained(tree, tmp_path / "straight")
    kills = 0

    def kill_some(driver: Driver, draw: random.Random) -> None:
        nonlocal kills
        while kills < 20:
            time.sleep(draw.uniform(0.2, 3.0))
            assert driver.pool is not None and driver.group is not None
            places = [worker.place for worker in list(driver.pool.workers)] + list(driver.group.places)
            pids = [place.pid for place in places if place is not None and os.path.exists(f"/proc/{place.pid}")]
            if pids:
                os.kill(draw.choice(pids), signal.SIGKILL)
                kills += 1

    def prepare(driver: Driver) -> None:
        threading.Thread(target=kill_some, args=(driver, random.Random(7)), daemon=True).start()

    weights = trained_on_cluster(tree, tmp_path / "run", prepare, rollout={"workers": 3}, chunk=4, restarts=100)
    assert kills >= 1
    assert_same(weights, tmp_path / "run", straight)


def test_a_run_ahead_depends_on_its_lag_alone(ray_cluster: Any, model_folder: Folder, tmp_path: Path) -> None:
    """On two workers, on three, and resumed after two of its steps."""
    tree = grpo(model_folder("llama")) | {"steps": 5, "algorithm": {"name": "grpo", "truncate": 2.0}}
    two = trained_on_cluster(tree, tmp_path / "two", rollout={"workers": 2}, ahead=2, chunk=1)
    three = trained_on_cluster(tree, tmp_path / "three", rollout={"workers": 3}, ahead=2)
    trained_on_cluster(tree | {"steps": 2}, tmp_path / "resumed", ahead=2)
    resumed = trained_on_cluster(tree, tmp_path / "resumed", ahead=2)
    assert tokens(tmp_path / "two") == tokens(tmp_path / "three") == tokens(tmp_path / "resumed")
    for other in (three, resumed):  # the sampler's log-probs are in the loss, and round with its batches
        for policy, weights in two.items():
            torch.testing.assert_close(other[policy], weights, rtol=1e-4, atol=1e-5)
    versions = {turn.version for turn in read_episodes(tmp_path / "two" / "episodes" / "000005.jsonl")[0].turns}
    assert versions == {2}


def test_a_node_that_joins_is_used(ray_cluster: Any, model_folder: Folder, tmp_path: Path) -> None:
    """Two workers fit, the third waits for its cores until another node joins."""
    rollout = {"workers": 3, "least": 2, "cpus": 3.0}
    with started_on_cluster(grpo(model_folder("llama")), tmp_path, rollout=rollout, learner={"cpus": 1.0}) as (
        driver,
        run,
    ):
        assert driver.pool is not None
        assert sum(worker.place is not None for worker in driver.pool.workers) == 2
        ray_cluster.add_node(num_cpus=4, object_store_memory=78 << 20)
        driver.pool.least = 3
        driver.train(run)
        assert len({worker.number for worker in driver.pool.workers if worker.place is not None}) == 3
