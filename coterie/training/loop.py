"""A run, and the loop that trains it."""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from coterie.algorithms.base import Algorithm
from coterie.algorithms.turn_filters import absent, drop_other_rounds, drop_stale, take_back
from coterie.algorithms.turn_metrics import turn_metrics
from coterie.config import Config
from coterie.credit.base import Credit
from coterie.engines.router import Router
from coterie.errors import UserError
from coterie.evaluation.evaluate import evaluate
from coterie.learners.batch import hand_back, make_batches
from coterie.learners.distributed import ALONE, Processes
from coterie.learners.learner import TorchLearner
from coterie.rollout.agent import Player
from coterie.rollout.collector import Collector
from coterie.rollout.metrics import enough, rollout_metrics
from coterie.sandbox import unprotected
from coterie.seeds import stable_hash
from coterie.training import checkpoint, collapse, opponents
from coterie.training.log import RunLog, StepLog
from coterie.training.signals import stop_after_step, told
from coterie.training.tasks import TaskStream
from coterie.types import Episode, Metrics, Task, ValueEstimator


class NobodySpoke(UserError, RuntimeError):
    """A workflow that asked none of its roles."""


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
    credit: Credit
    critic: ValueEstimator | None = None
    memory: dict[str, Any] = field(default_factory=dict)  # what the algorithm remembers from step to step
    step: int = 0  # how many are done; steps are told to people from 1 on
    best: float | None = None  # the best evaluation so far
    measured: int | None = None  # after how many steps the last evaluation was
    processes: Processes = ALONE
    stopping: bool = field(default=False, repr=False)
    signal: int = field(default=0, repr=False)  # the one that asked to stop; 0: none did

    @property
    def evaluation_due(self) -> bool:
        """Whether the team as it is now is to be measured."""
        every = self.config.eval.every
        return self.step == self.config.steps or (every > 0 and self.step % every == 0)

    @property
    def keeps_best(self) -> bool:
        """Whether the checkpoint that evaluated best is kept, too."""
        return self.config.checkpoint.best is not False and self.config.eval.every > 0

    def players(self, evaluating: bool = False) -> dict[str, Player]:
        """Who plays which role now, and how it is sampled."""
        roles = {name: role.policies[0] for name, role in self.config.roles.items()}
        played = self.algorithm.assign_roles(self.step, roles)
        if not evaluating:
            played = opponents.assign_roles(self.config, self.step, self.memory, played)
        sampling = self.config.evaluation_sampling_of if evaluating else self.config.sampling_of
        later = {name: role.policies[1:] for name, role in self.config.roles.items()}
        return {role: Player(policy, sampling(role), later[role]) for role, policy in played.items()}


def train(run: Run) -> None:
    """Train to the last step, or until Ctrl-C, SIGTERM or SIGHUP."""
    config = run.config
    with stop_after_step(run):
        measure_if_due(run)
        while run.step < config.steps and not stopping(run):
            with run.log.step(run.step + 1) as log:
                log.add(protection())
                learn(run, log)
            run.step += 1
            if run.step % config.checkpoint.every == 0 or run.step == config.steps:
                checkpoint.save(run)
            measure_if_due(run)
        if stopping(run):
            checkpoint.save(run)
            run.signal = max(run.processes.gather([run.signal]))
            run.log.stopped(told(run.signal))
    run.stopping = stopping(run)  # and none leaves before the first has written all


def stopping(run: Run) -> bool:
    """Whether any process was told to stop: all end after the same step."""
    return run.processes.any(run.stopping)


def measure_if_due(run: Run) -> None:
    """Evaluate after every few steps, before the first and after the last. What a stopped run leaves out, it makes up
    for when it is resumed."""
    if run.evaluation_due and run.measured != run.step and not stopping(run):
        with run.log.step(run.step) as log:
            log.add(protection())
            measure(run, log)
        run.measured = run.step


def protection() -> Metrics:
    """Every step says so if programs run without bubblewrap."""
    return {"sandbox/unsafe": 1.0} if unprotected() else {}


def learn(run: Run, log: StepLog) -> None:
    """One step: play, judge, update, and let the engine speak with the new weights."""
    algorithm = run.algorithm.at_step(run.step)
    started = time.perf_counter()
    with log.phase("rollout"):
        episodes, otherwise = play(run, run.tasks.next(), run.config.episodes_per_task)
        run.engine.clear()  # the update wants the memory, and every step starts alike
    spoken = sum(len(turn.response_ids) for e in episodes for turn in e.turns if not turn.repeated)
    rate = spoken / (time.perf_counter() - started)
    log.add(rollout_metrics(episodes) | {"sampled_tokens": spoken, "tokens_per_second": rate})
    log.episodes(episodes, list(otherwise.values()))
    played = enough(episodes, run.config.rollout.max_failed)
    must_have_spoken(run, played)
    with log.phase("credit"):
        log.add(judge(run, played, otherwise) | turn_metrics(played, run.learners))
    with log.phase("update"):
        for learner in run.learners.values():
            learner.begin(run.step)
        if algorithm.trains_policies(run.step):
            log.add(algorithm.update(run.learners, make_batches(played), run.rng, run.step))
        if run.critic is not None:
            log.add(run.critic.fit(played, run.step))
        for policy, learner in run.learners.items():
            run.engine.load(policy, learner.version)
        log.add(opponents.remember(run.config, run.step, run.memory, run.learners, run.engine))
    alarmed, news = collapse.watch(run.config, run.memory, played, log.metrics)
    log.add(alarmed)
    for line in news if run.processes.first else ():
        print(f"step {run.step + 1}: {line}", file=sys.stderr)


def must_have_spoken(run: Run, played: list[Episode]) -> None:
    """Stop a run that would go on to its end and learn nothing."""
    if played and not any(episode.turns for episode in played):
        silent = f"nobody spoke in any of {len(played)} episodes of {type(run.collector.workflow).__name__}"
        ask = "its run has to ask roles, as in `turn = await team[role].say(prompt)`"
        raise NobodySpoke(f"workflow: {silent}, so there is nothing to learn from; {ask}")


def play(run: Run, tasks: list[Task], repeats: int) -> tuple[list[Episode], dict[str, Episode]]:
    """The episodes to learn from, and what would have happened otherwise."""
    seed, players, collector = stable_hash(run.config.seed, "train", run.step), run.players(), run.collector
    episodes = collector.collect(tasks, repeats, players, seed)
    learning = run.algorithm.trained_policies(run.learners, run.step)
    while forks := run.algorithm.forks(episodes, learning):
        episodes += collector.fork(forks, players)
    otherwise = collector.fork(run.credit.forks(episodes), players)
    return episodes, {episode.id: episode for episode in enough(otherwise, run.config.rollout.max_failed)}


def judge(run: Run, played: list[Episode], otherwise: dict[str, Episode]) -> Metrics:
    """What every turn was worth."""
    algorithm = run.algorithm
    read(run, played)
    metrics = drop_stale(played, run.learners)
    drop_other_rounds(played, algorithm, run.step)
    metrics |= run.credit.assign(played, otherwise, once=algorithm.chain == "team")
    metrics |= algorithm.compute_advantages(played, run.memory)
    take_back(played)
    return metrics | absent(played, run.config.roles)


def read(run: Run, played: list[Episode]) -> None:
    """What learners and critics think of what was said, before any update of the step, where it is asked for."""
    algorithm = run.algorithm
    on_trunk = algorithm.needs_values and run.critic is None
    if algorithm.kl > 0 or algorithm.needs_old_logprobs or algorithm.needs_entropy or on_trunk:
        for policy, batch in make_batches(played, judged=False).items():
            learner = run.learners[policy]
            if learner.frozen:
                continue  # its turns are environment: nobody judges them
            if algorithm.kl > 0:
                hand_back(played, batch, learner.logprobs(batch, reference=True), "ref_logprobs")
            if algorithm.needs_old_logprobs or algorithm.needs_entropy or on_trunk:
                thought = learner.scores(batch)
                if algorithm.needs_old_logprobs:
                    hand_back(played, batch, thought.logprobs, "old_logprobs")
                if algorithm.needs_entropy:
                    hand_back(played, batch, thought.entropy, "entropy")
                if on_trunk and thought.values is not None:
                    hand_back(played, batch, thought.values, "values")
    if run.critic is not None:
        run.critic.read(played)


def measure(run: Run, log: StepLog) -> None:
    """Play the held-out tasks with the weights of this step; keep a checkpoint of the best."""
    with log.phase("eval"):
        players, seed = run.players(evaluating=True), stable_hash(run.config.seed, "eval")
        report = evaluate(run.collector, run.held_out, run.config.eval.episodes_per_task, players, seed)
        run.engine.clear()
    log.add({f"eval/{name}": value for name, value in report.metrics.items()})
    if run.best is None or report.metrics["reward"] > run.best:
        run.best = report.metrics["reward"]
        if run.keeps_best:
            checkpoint.save(run, best=True)
