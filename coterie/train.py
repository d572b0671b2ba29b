"""A run, and the loop that trains it."""

from __future__ import annotations

import random
import signal
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

from coterie import checkpoint
from coterie.algorithms.base import Algorithm
from coterie.batch import hand_back, make_batches
from coterie.config import Config
from coterie.engines.router import Router
from coterie.evaluate import evaluate
from coterie.learners.torch import TorchLearner
from coterie.log import RunLog, StepLog
from coterie.rollout import Collector, Seat, enough, summary
from coterie.seeds import stable_hash
from coterie.tasks import TaskStream
from coterie.types import Episode, Task


@dataclass
class Run:
    """All that the loop draws on; a checkpoint holds whatever of it changes."""

    config: Config
    folder: Path
    algorithm: Algorithm
    collector: Collector
    engine: Router
    learners: Mapping[str, TorchLearner]
    tasks: TaskStream
    held_out: list[Task]
    log: RunLog
    rng: random.Random
    step: int = 0
    best: float | None = None  # the best evaluation so far
    stopping: bool = field(default=False, repr=False)

    def seats(self, evaluating: bool = False) -> dict[str, Seat]:
        """Who plays which role now, and how it is sampled."""
        roles = {name: role.policy for name, role in self.config.roles.items()}
        played = self.algorithm.seats(self.step, roles)
        sampling = self.config.evaluation_sampling_of if evaluating else self.config.sampling_of
        return {role: Seat(policy, sampling(role)) for role, policy in played.items()}


def train(run: Run) -> None:
    """Train to the last step, or until Ctrl-C."""
    config = run.config
    with _finishing_on_interrupt(run):
        while run.step < config.steps and not run.stopping:
            with run.log.step(run.step) as log:
                if config.eval.every and run.step % config.eval.every == 0:
                    measure(run, log)
                learn(run, log)
            run.step += 1
            if run.step % config.checkpoint.every == 0 or run.step == config.steps or run.stopping:
                checkpoint.save(run)
        if run.step == config.steps:
            with run.log.step(run.step) as log:
                measure(run, log)


def learn(run: Run, log: StepLog) -> None:
    """One step: play, judge, update, and let the engine speak with the new weights."""
    config, algorithm = run.config, run.algorithm
    started = time.perf_counter()
    with log.phase("rollout"):
        seed = stable_hash(config.seed, "train", run.step)
        episodes = run.collector.collect(run.tasks.next(), config.episodes_per_task, run.seats(), seed)
        run.engine.clear()  # the update wants the memory, and every step starts alike
    spoken = sum(len(turn.response_ids) for episode in episodes for turn in episode.turns)
    log.add(summary(episodes) | {"tokens_per_second": spoken / (time.perf_counter() - started)})
    log.episodes(episodes)
    played = enough(episodes, config.rollout.max_failed)
    with log.phase("credit"):
        read(run, played)
        log.add(algorithm.credit(played))
    with log.phase("update"):
        for learner in run.learners.values():
            learner.begin(run.step)
        log.add(algorithm.update(run.learners, make_batches(played), run.rng))
        for policy, learner in run.learners.items():
            run.engine.load(policy, learner.version)


def read(run: Run, played: list[Episode]) -> None:
    """Reference log-probs and values of what was said, where the algorithm asks for them."""
    if not (run.algorithm.kl > 0 or run.algorithm.value_head):
        return
    for policy, batch in make_batches(played, judged=False).items():
        learner = run.learners[policy]
        if learner.frozen:
            continue  # its turns are environment: nobody judges them
        if run.algorithm.kl > 0:
            hand_back(played, batch, learner.logprobs(batch, reference=True), "ref_logprobs")
        if run.algorithm.value_head:
            hand_back(played, batch, learner.values(batch), "values")


def measure(run: Run, log: StepLog) -> None:
    """Play the held-out tasks with the weights of this step; keep a checkpoint of the best."""
    with log.phase("eval"):
        seats, seed = run.seats(evaluating=True), stable_hash(run.config.seed, "eval")
        report = evaluate(run.collector, run.held_out, run.config.eval.episodes_per_task, seats, seed)
        run.engine.clear()
    log.add({f"eval/{name}": value for name, value in report.metrics.items()})
    if run.best is None or report.metrics["reward"] > run.best:
        run.best = report.metrics["reward"]
        if run.config.checkpoint.best and run.config.eval.every:
            checkpoint.save(run, best=True)


@contextmanager
def _finishing_on_interrupt(run: Run) -> Iterator[None]:
    """The first Ctrl-C ends the run after its step; the second ends it at once."""

    def stop(signum: int, frame: FrameType | None) -> None:
        if run.stopping:
            raise KeyboardInterrupt
        run.stopping = True
        print("\nfinishing this step, then saving; Ctrl-C again stops at once", file=sys.stderr)

    before = signal.signal(signal.SIGINT, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
