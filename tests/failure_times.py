"""Seconds until the driver of a cluster notices a loss, and until it has recovered: `python -m tests.failure_times`.

These are the figures of the failure table in docs/cluster.md, on a tiny model. Recovered: another rollout worker is
ready, or the learners have loaded the last checkpoint.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from coterie.cluster.driver import Driver
from tests.clusters import HEALTH, end_node, learner, node_of, on_fit, on_wait, player, raylets, trained_on_cluster
from tests.models import tiny
from tests.runs import naming_config

KILL, STOP = signal.SIGKILL, signal.SIGSTOP


class Clock:
    """Seconds since a process or a node of the cluster was ended, when it was noticed, and when all was well again."""

    def __init__(self) -> None:
        self.ended, self.seconds, self.stopped = 0.0, dict[str, float](), list[int]()

    def mark(self, what: str) -> None:
        if self.ended and what not in self.seconds:
            self.seconds[what] = round(time.monotonic() - self.ended, 2)

    def watch(self, driver: Driver) -> None:
        pool, plain = driver.pool, driver.pool._returned

        def returned(worker: Any, ref: Any) -> None:
            starts = worker.calls[ref].starts
            plain(worker, ref)
            if starts and worker.place is not None:
                self.mark("recovered")

        pool._returned = returned  # type: ignore[method-assign]
        pool._lost = marked(pool._lost, before=lambda: self.mark("noticed"))  # type: ignore[method-assign]
        driver._report = marked(driver._report, before=lambda: self.mark("noticed"))  # type: ignore[method-assign]
        again = marked(driver._restart_learners, after=lambda: self.mark("learners recovered"))
        driver._restart_learners = again  # type: ignore[method-assign]

    def end(self, driver: Driver, who: Callable[[Driver], int], node: bool, how: signal.Signals) -> None:
        process = who(driver)
        self.ended = time.monotonic()
        if node:
            self.stopped.append(node_of(process))
            end_node(self.stopped[0], how)
        else:
            os.kill(process, how)


def marked(
    function: Callable[..., Any], before: Callable[[], None] = lambda: None, after: Callable[[], None] = lambda: None
) -> Callable[..., Any]:
    def call(*arguments: Any) -> Any:
        before()
        result = function(*arguments)
        after()
        return result

    return call


def measure(
    model: Path, when: Any, who: Callable[[Driver], int], node: bool, how: signal.Signals, health: Mapping[str, int]
) -> dict[str, float]:
    """The seconds of one loss, with a deadline of 3 s, `score_deadline` 0.5 s and a patience of 2 s."""
    clock = Clock()
    tree = naming_config(model, steps=8) | {"rollout": {"deadline": 3.0, "score_deadline": 0.5}}

    def prepare(driver: Driver) -> None:
        clock.watch(driver)
        when(driver, 2 if when is on_fit else 4, lambda: clock.end(driver, who, node, how))

    with TemporaryDirectory() as folder, raylets(3, head_cores=0, health=health):
        trained_on_cluster(tree, Path(folder), prepare, rollout={"workers": 2}, chunk=4, patience=2.0)
        for raylet in clock.stopped:
            end_node(raylet)
    return clock.seconds


def far_player(driver: Driver) -> int:
    """The process of a rollout worker that is not on the learner's node."""
    processes = [worker.place.pid for worker in driver.pool.workers if worker.place]
    return next(process for process in processes if node_of(process) != node_of(learner(driver)))


def main() -> None:
    ends = {"rollout worker": (on_wait, player, False), "learner": (on_fit, learner, False)}
    nodes = {"node of a rollout worker": (on_wait, far_player, True), "node of the learner": (on_fit, learner, True)}
    with TemporaryDirectory() as folder:
        model = tiny("llama", Path(folder) / "model")
        for health in (HEALTH, {}):
            for what, (when, who, node) in (ends | nodes if health else nodes).items():
                for how in (KILL, STOP):
                    seconds = measure(model, when, who, node, how, health)
                    checks = "with the page's health checks" if health else "with Ray's own"
                    print(f"{what} {how.name} {checks}: {seconds}", file=sys.stdout, flush=True)


if __name__ == "__main__":
    main()
