"""A real Ray on this machine, of several raylets, for tests; and ways to end its processes."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import ray
from ray.cluster_utils import Cluster

from coterie.cluster.driver import Driver, driving
from coterie.training import checkpoint
from coterie.training.loop import Run
from tests.killed import on_call
from tests.runs import written

STORE = 78 << 20  # bytes of shared memory per raylet, about the least that Ray accepts
# A dead node is noticed in 2 s instead of 15.
HEALTH = {"health_check_initial_delay_ms": 0, "health_check_period_ms": 1000, "health_check_timeout_ms": 2000}


@contextmanager
def raylets(count: int) -> Iterator[Cluster]:
    """A cluster of so many nodes with four cores each, and this process connected to it."""
    node = {"num_cpus": 4, "object_store_memory": STORE}
    head = node | {"include_dashboard": False, "_system_config": HEALTH | {"health_check_failure_threshold": 3}}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    try:
        for _ in range(count - 1):
            cluster.add_node(**node)
        ray.init(cluster.address, log_to_driver=False, logging_level="error")
        yield cluster
    finally:
        ray.shutdown()
        cluster.shutdown()


@contextmanager
def started_on_cluster(tree: Mapping[str, Any], folder: Path, **cluster: Any) -> Iterator[tuple[Driver, Run]]:
    """A run whose models are on the connected cluster."""
    config = written({**tree, "cluster": cluster}, folder)
    with driving(config) as driver:
        yield driver, driver.build(config, folder, console=False, saved=checkpoint.latest(folder))


def trained_on_cluster(
    tree: Mapping[str, Any], folder: Path, prepare: Callable[[Driver], None] = lambda driver: None, **cluster: Any
) -> dict[str, Any]:
    """Train a run on the connected cluster, or go on with it; its final weights by policy."""
    with started_on_cluster(tree, folder, **cluster) as (driver, run):
        if checkpoint.latest(folder) is not None:
            checkpoint.resume(run)
        prepare(driver)
        driver.train(run)
        return {policy: learner.weights() for policy, learner in run.learners.items()}


def end_player(driver: Driver, play: int, how: signal.Signals = signal.SIGKILL) -> None:
    """The first rollout worker gets a signal in a rollout, while it plays a chunk."""
    assert driver.pool is not None
    pool = driver.pool

    def wait(*arguments: Any) -> None:
        os.kill(next(worker.place.pid for worker in pool.workers if worker.place), how)
        type(pool)._wait(pool, *arguments)

    pool._wait = on_call(play, lambda *arguments: type(pool)._wait(pool, *arguments), wait)  # type: ignore[method-assign]


def end_learner(driver: Driver, fit: int, rank: int = 0, how: signal.Signals = signal.SIGKILL) -> None:
    """A learner gets a signal in an update."""
    assert driver.group is not None
    group, calls = driver.group, 0
    call_each = group.call_each

    def counted(method: str, *arguments: Any) -> Any:
        nonlocal calls
        calls += method == "fit_together"
        if method == "fit_together" and calls == fit:
            os.kill(group.places[rank].pid, how)  # type: ignore[union-attr]
        return call_each(method, *arguments)

    group.call_each = counted  # type: ignore[method-assign]
