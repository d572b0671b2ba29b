"""Builds a run whose models are on a cluster, and trains it with the training loop of a single process."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import ray

from coterie.cluster.ahead import Ahead
from coterie.cluster.collector import ClusterCollector, PushingEngine
from coterie.cluster.connection import connected
from coterie.cluster.grader import Grader
from coterie.cluster.learners import LearnerGroup, RemoteCritic, RemoteLearner
from coterie.cluster.processes import ClusterFailed, LearnersLost
from coterie.cluster.rollout_pool import RolloutPool
from coterie.cluster.rollout_worker import RolloutWorker
from coterie.cluster.shipment import Shipment, pack
from coterie.config import Config
from coterie.config.settings import Cluster
from coterie.learners.distributed import SINGLE_PROCESS
from coterie.training import checkpoint, loop, opponents
from coterie.training.build import build_collector, build_driver_parts
from coterie.training.loop import Run
from coterie.training.models import chats_of, with_local_policies


class Driver:
    """The driver's end of a cluster, for one run."""

    pool: RolloutPool  # this and the next two exist once the run is built
    group: LearnerGroup
    ahead: Ahead

    def __init__(self, settings: Cluster, workers: ExitStack) -> None:
        """`workers`: the stack that ends all workers when it is closed."""
        self.settings, self.workers = settings, workers

    def build(self, config: Config, folder: Path, console: bool = True, saved: Path | None = None) -> Run:
        """As `training.build.build`; the workers load the models at the same time."""
        parts = build_driver_parts(config, folder, console, training=True, processes=SINGLE_PROCESS)
        config = parts.config
        shipment, saved = pack(config, folder), saved.resolve() if saved else None
        self.group = self.workers.enter_context(closing(self._group(shipment, saved)))
        self.pool = self.workers.enter_context(closing(self._pool(config, shipment, saved)))  # ends before learners do
        self.group.start()
        self.group.meanwhile = self.pool.progress if self.settings.ahead else None
        self.pool.wait_until_ready()
        policies = opponents.with_slots(with_local_policies(config)).policies
        learners = {name: RemoteLearner(self.group, name, policy.frozen) for name, policy in policies.items()}
        engine = PushingEngine(self.pool, self.group)
        parts.log.chats = chats_of(config)
        here = replace(build_collector(config, parts.env, engine, {}, SINGLE_PROCESS, {}), chats=parts.log.chats)
        self.ahead = Ahead(self.settings.ahead, self.pool, self.group)
        own: dict[str, Any] = {"chunk": self.settings.chunk, "patience": self.settings.patience}
        collector = ClusterCollector(**vars(here), pool=self.pool, ahead=self.ahead, **own)
        critic = RemoteCritic(self.group) if self.group.has_critic else None
        self.ahead.run = parts.run(collector, engine, learners, critic, self.pool.hashes, SINGLE_PROCESS)
        return self.ahead.run

    def train(self, run: Run) -> None:
        """Train to the last step. If learners are lost, go on from the last checkpoint, with the same numbers."""
        run.log.open()
        failures, last = 0, -1
        with run.log.recording_failure():
            while True:
                try:
                    if failures:
                        self._restart_learners(run)
                    self._save_first(run)
                    loop.train(run)
                    return
                except LearnersLost as lost:
                    folder = checkpoint.latest(run.folder)
                    saved = int(folder.name) if folder else 0
                    failures, last = failures + 1 if saved == last else 1, saved
                    self._report(lost, failures, saved)

    def push_and_wait(self, policy: str) -> None:
        """Push the weights of a policy, and wait until every worker has loaded them."""
        self.pool.push(policy, self.group.versions[policy], self.group.weights(policy))
        self.pool.wait_until_loaded()

    def _restart_learners(self, run: Run) -> None:
        run.log.status.write("running")  # the loop has written that the run failed
        self.ahead.forget()
        self.group.start()
        checkpoint.resume(run)

    def _save_first(self, run: Run) -> None:
        """Push all weights, so that workers can go back to them; save a run that has no checkpoint to go back to."""
        self.group.changed |= {policy for policy, learner in run.learners.items() if not learner.frozen}
        for policy, learner in run.learners.items():
            run.engine.weights_changed(policy, learner.version)
        if checkpoint.latest(run.folder) is None:
            checkpoint.save(run)

    def _report(self, lost: LearnersLost, failures: int, saved: int) -> None:
        if failures > self.settings.restarts:
            raise ClusterFailed(
                f"{lost}\nThe learners were lost {failures} times after step {saved} without a new checkpoint, more "
                "often than cluster.restarts allows"
            ) from lost
        print(f"{lost}\nthe learners are restarted from the checkpoint of step {saved}", file=sys.stderr)

    def _pool(self, config: Config, shipment: Shipment, saved: Path | None) -> RolloutPool:
        rollout = self.settings.rollout
        slots = max(1, config.rollout.concurrency // max(self.settings.chunk, config.episodes_per_task))
        least, workers, options = rollout.least or rollout.workers, rollout.workers, rollout.resources
        if self.settings.graders is not None:  # the pool's workers are then graders, each with its samplers
            each, workers = self.settings.samplers_per_grader, self.settings.graders.workers
            slots, least, options = slots * each, -(-least // each), {"num_cpus": self.settings.graders.cpus}
        kind = RolloutWorker if self.settings.graders is None else Grader
        options |= {"scheduling_strategy": "SPREAD", "max_concurrency": slots + 8}
        arguments: tuple[Any, ...] = (ray.put(shipment), saved)
        adapters = all(policy.frozen or policy.lora for policy in with_local_policies(config).policies.values())
        sets = self.settings.ahead + 1 if adapters else 1  # copies of whole models would not fit
        make = ray.remote(kind).options(**options).remote
        return RolloutPool(make, arguments, sets, workers, least, slots, self.settings.restarts)

    def _group(self, shipment: Shipment, saved: Path | None) -> LearnerGroup:
        learner = self.settings.learner
        arguments = (ray.put(shipment), saved)
        return LearnerGroup(learner.workers, learner.cpus, learner.gpus, arguments, self.settings.patience)


@contextmanager
def driving(config: Config) -> Iterator[Driver]:
    """Connect to the cluster of a config; at the end all workers are ended."""
    assert config.cluster is not None
    with connected(config.cluster), ExitStack() as workers:
        yield Driver(config.cluster, workers)
