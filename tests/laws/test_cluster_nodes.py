"""Nodes of a cluster that are lost or join, drivers that are killed, and what no node can hold."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ray", reason="Ray is not installed: pip install -e '.[ray]'")

import ray

from coterie.cluster.connection import CannotPlace
from coterie.cluster.driver import Driver
from coterie.training.loop import Run
from tests.clusters import (
    NODE,
    end_node,
    learner,
    node_of,
    on_fit,
    on_wait,
    raylets,
    started_on_cluster,
    trained_on_cluster,
)
from tests.laws.test_cluster import assert_same, config
from tests.laws.test_parallel import tokens
from tests.runs import naming_config, trained, written

pytestmark = pytest.mark.slow
Folder = Callable[[str], Path]
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def alone(model_folder: Folder, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The run in this one process."""
    return trained(config(model_folder("llama")), tmp_path_factory.mktemp("alone"))


def lose_node(driver: Driver, learns: bool, how: signal.Signals, lost: list[int]) -> None:
    """Lose the node of the learner and all rollout workers, or a node that has rollout workers only."""
    players = {worker.place.pid: node_of(worker.place.pid) for worker in driver.pool.workers if worker.place}
    with_learner = node_of(learner(driver))
    elsewhere = [process for process, node in players.items() if node != with_learner]
    lost.append(with_learner if learns else players[elsewhere[0]])
    end_node(lost[0], how)
    for process in elsewhere if learns else ():
        os.kill(process, signal.SIGKILL)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
@pytest.mark.parametrize(
    ("learns", "when"), [(False, on_wait), (True, on_wait), (True, on_fit)], ids=["plays", "learns", "learns in a fit"]
)
def test_a_node_that_is_lost_takes_no_bit_with_it(
    learns: bool, when: Any, how: signal.Signals, alone: Run, model_folder: Folder, tmp_path: Path
) -> None:
    """With the learner's node the weights are lost that new workers would load. The driver's node has no cores."""
    lost: list[int] = []
    with raylets(3, head_cores=0):
        weights = trained_on_cluster(
            config(model_folder("llama")),
            tmp_path,
            lambda driver: when(driver, 6, lambda: lose_node(driver, learns, how, lost)),
            rollout={"workers": 2},
            chunk=4,
        )
        end_node(lost[0])  # which was only stopped
    assert_same(weights, tmp_path, alone)


def test_a_node_that_joins_is_used(model_folder: Folder, tmp_path: Path) -> None:
    """Two workers fit, the third waits for its cores until another node joins."""
    rollout = {"workers": 3, "least": 2, "cpus": 3.0}
    tree = naming_config(model_folder("llama"), steps=3)
    with (
        raylets(2) as cluster,
        started_on_cluster(tree, tmp_path, rollout=rollout, learner={"cpus": 1.0}) as (driver, run),
    ):
        assert sum(worker.place is not None for worker in driver.pool.workers) == 2
        cluster.add_node(**NODE)
        driver.pool.least = 3
        driver.train(run)
        assert len({worker.number for worker in driver.pool.workers if worker.place is not None}) == 3


def test_a_killed_driver_is_resumed_to_the_bit(alone: Run, model_folder: Folder, tmp_path: Path) -> None:
    """Its workers end by themselves, and their cores are free again."""
    run, train = tmp_path / "killed", [sys.executable, "-m", "coterie", "train"]
    with raylets(2) as cluster:
        settings = {"address": cluster.address, "rollout": {"workers": 1}}
        written(config(model_folder("llama")) | {"name": "killed", "cluster": settings}, tmp_path)
        first = subprocess.Popen([*train, str(tmp_path / "config-as-given.yaml"), "--out", str(tmp_path)], cwd=ROOT)
        while not (run / "checkpoints" / "000001").is_dir():
            time.sleep(0.02)
        os.kill(first.pid, signal.SIGKILL)
        first.wait()
        until = time.monotonic() + 20
        while ray.available_resources()["CPU"] < 8:
            assert time.monotonic() < until
            time.sleep(0.1)
        subprocess.run([*train, "--resume", str(run)], cwd=ROOT, check=True)
    assert tokens(run) == tokens(alone.folder)
    files = [path.relative_to(run) for path in run.glob("checkpoints/000003/policies/*/*.safetensors")]
    assert len(files) == 2
    assert all((run / file).read_bytes() == (alone.folder / file).read_bytes() for file in files)


def test_what_no_node_can_hold_is_told_at_once(model_folder: Folder, tmp_path: Path) -> None:
    with raylets(2):
        began = time.monotonic()
        with (
            pytest.raises(CannotPlace, match=r"cluster\.rollout: 2 workers with 0 GPUs and 5 CPUs each"),
            started_on_cluster(config(model_folder("llama")), tmp_path, rollout={"workers": 2, "cpus": 5.0}),
        ):
            pass
        assert time.monotonic() - began < 5
