"""A real Ray on this machine, of several raylets, for tests; and ways to end its processes."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import ray
from ray.cluster_utils import Cluster

from coterie.cluster.driver import Driver, driving
from coterie.training import checkpoint
from coterie.training.loop import Run
from tests.runs import written

NODE = {"num_cpus": 4, "object_store_memory": 78 << 20}  # bytes: about the least shared memory that Ray accepts
# A silent node is noticed sooner than with Ray's defaults.
HEALTH = {
    "health_check_initial_delay_ms": 0,
    "health_check_period_ms": 1000,
    "health_check_timeout_ms": 2000,
    "health_check_failure_threshold": 3,
}


@contextmanager
def raylets(count: int, head_cores: int = 4, health: Mapping[str, int] = HEALTH) -> Iterator[Cluster]:
    """A cluster of so many nodes with four cores each, and this process connected to it."""
    head = NODE | {"num_cpus": head_cores, "include_dashboard": False, "_system_config": dict(health)}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    try:
        for _ in range(count - 1):
            cluster.add_node(**NODE)
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


def on_wait(driver: Driver, number: int, act: Callable[[], Any]) -> None:
    """Do something when the driver waits for the n-th time for rollout workers that play."""
    pool, waits = driver.pool, 0
    plain = pool._wait

    def counted(*arguments: Any) -> None:
        nonlocal waits
        if _players(driver):
            waits += 1
            if waits == number:
                act()
        plain(*arguments)

    pool._wait = counted  # type: ignore[method-assign]


def on_fit(driver: Driver, number: int, act: Callable[[], Any]) -> None:
    """Do something just before the n-th fit, which the learner then does not finish if this has ended it."""
    group, calls = driver.group, 0
    plain = group.call_each

    def counted(method: str, *arguments: Any) -> Any:
        nonlocal calls
        calls += method == "fit_together"
        if method == "fit_together" and calls == number:
            act()
        return plain(method, *arguments)

    group.call_each = counted  # type: ignore[method-assign]


def player(driver: Driver) -> int:
    """The process of the first rollout worker that plays a chunk."""
    return _players(driver)[0]


def _players(driver: Driver) -> list[int]:
    playing = [w for w in driver.pool.workers if any(call.rollout is not None for call in w.calls.values())]
    return [worker.place.pid for worker in playing if worker.place is not None]


def learner(driver: Driver, rank: int = 0) -> int:
    """The process of a learner."""
    assert driver.group.places[rank] is not None
    return driver.group.places[rank].pid  # type: ignore[union-attr]


def end_player(driver: Driver, play: int, how: signal.Signals = signal.SIGKILL) -> None:
    """The first rollout worker gets a signal in a rollout, while it plays a chunk."""
    on_wait(driver, play, lambda: os.kill(player(driver), how))


def end_learner(driver: Driver, fit: int, rank: int = 0, how: signal.Signals = signal.SIGKILL) -> None:
    """A learner gets a signal in an update."""
    on_fit(driver, fit, lambda: os.kill(learner(driver, rank), how))


def node_of(process: int) -> int:
    """The raylet of a worker's process: its parent."""
    parent = int(Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[1])
    assert "raylet" in Path(f"/proc/{parent}/comm").read_text()
    return parent


def end_node(raylet: int, how: signal.Signals = signal.SIGKILL) -> None:
    """All processes of a node get a signal; one that was stopped is killed later, when the cluster shuts down."""
    children = [
        int(pid) for path in Path(f"/proc/{raylet}/task").glob("*/children") for pid in path.read_text().split()
    ]
    for pid in (raylet, *children):
        with suppress(ProcessLookupError):
            os.kill(pid, how)
