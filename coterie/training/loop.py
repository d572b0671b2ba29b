"""The training loop: rollout, credit assignment, update, checkpoint, evaluation."""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from coterie.algorithms.base import Algorithm
from coterie.algorithms.turn_filters import (
    clear_dropped_advantages,
    count_silent,
    drop_other_rounds,
    drop_stale,
    explain_left_out,
)
from coterie.config import Config
from coterie.credit.base import Credit
from coterie.errors import UserError
from coterie.evaluation.evaluate import evaluate
from coterie.learners.batch import make_batches, scatter_to_turns
from coterie.learners.distributed import SINGLE_PROCESS, Processes
from coterie.rl.validate import check_advantages, checked_metrics
from coterie.rollout.agent import Player, Players, players_of
from coterie.rollout.collector import Collector
from coterie.rollout.metrics import drop_failed, rollout_metrics, turn_metrics
from coterie.sandbox import unprotected
from coterie.seeds import stable_hash
from coterie.training import checkpoint, collapse, opponents
from coterie.training.log import RunLog, StepLog
from coterie.training.signals import signal_name, stop_after_step
from coterie.training.tasks import TaskStream
from coterie.training.token_record import entropy_errors, measure_movement, recording_tokens
from coterie.types import Engine, Episode, Learner, Metrics, Task, ValueEstimator

SAMPLED = "sampled_tokens"  # key in a run's memory: the tokens sampled in training so far


class NoTurns(UserError, RuntimeError):
    """A workflow in which no role took a turn."""


@dataclass(frozen=True)
class Plan:
    """The rollout of a step: its tasks, players and seed."""

    tasks: list[Task]
    players: Players
    seed: int


@dataclass
class Run:
    """The state of a training run; a checkpoint stores the parts that change."""

    config: Config
    folder: Path
    algorithm: Algorithm
    collector: Collector
    engine: Engine
    learners: Mapping[str, Learner]
    tasks: TaskStream
    held_out: list[Task]
    log: RunLog
    rng: random.Random
    credit: Credit
    critic: ValueEstimator | None = None
    memory: dict[str, Any] = field(default_factory=dict)  # state of algorithm, opponents and collapse detection
    step: int = 0  # completed steps; logs count from 1
    best: float | None = None  # the best evaluation reward so far
    evaluated_at: int | None = None  # completed steps at the last evaluation
    processes: Processes = SINGLE_PROCESS
    stopping: bool = field(default=False, repr=False)
    signal: int = field(default=0, repr=False)  # the signal that requested the stop; 0: none

    @property
    def finished(self) -> bool:
        """True if all steps are done, or the token budget is spent."""
        budget = self.config.max_sampled_tokens
        return self.step >= self.config.steps or (budget is not None and self.memory.get(SAMPLED, 0) >= budget)

    @property
    def evaluation_due(self) -> bool:
        """True if the current weights are to be evaluated; never without held-out tasks."""
        every, before = self.config.eval.every, self.config.eval.before_training
        if not self.held_out:
            return False
        if self.step == 0 and before is not None and not self.finished:
            return before
        return self.finished or (every > 0 and self.step % every == 0)

    @property
    def keeps_best(self) -> bool:
        """True if the checkpoint with the best evaluation is kept."""
        return self.config.checkpoint.best is not False and self.config.eval.every > 0

    def plan(self, step: int) -> Plan:
        """The rollout of a step. It depends only on the step, and on the opponents in the run's memory."""
        return Plan(self.tasks.at_step(step), self.players(step=step), stable_hash(self.config.seed, "train", step))

    def players(self, evaluating: bool = False, step: int | None = None) -> dict[str, Player]:
        """The policy and the sampling settings of each role at a step, by default the current one."""
        step = self.step if step is None else step
        roles = {name: role.policies[0] for name, role in self.config.roles.items()}
        played = self.algorithm.assign_roles(step, roles)
        if not evaluating:
            played = opponents.assign_roles(self.config, step, self.memory, played)
        return players_of(self.config, played, evaluating)


def train(run: Run) -> None:
    """Train to the last step, or until Ctrl-C, SIGTERM or SIGHUP."""
    config = run.config
    with stop_after_step(run), run.log.recording_failure():
        evaluate_if_due(run)
        while not run.finished and not should_stop(run):
            with run.log.step(run.step + 1) as log:
                log.add(sandbox_metrics())
                training_step(run, log)
            run.step += 1
            if run.step % config.checkpoint.every == 0 or run.finished:
                checkpoint.save(run)
            evaluate_if_due(run)
        if should_stop(run):
            checkpoint.save(run)
            run.signal = max(run.processes.all_gather([run.signal]))
            run.log.stopped(signal_name(run.signal))
        elif run.finished:
            run.log.finished()
    run.stopping = should_stop(run)  # a barrier: no process exits before the first one has written everything


def should_stop(run: Run) -> bool:
    """True if any process got a stop signal: all processes stop after the same step."""
    return run.processes.any(run.stopping)


def evaluate_if_due(run: Run) -> None:
    """Evaluate before the first step, every `eval.every` steps and after the last. An evaluation that a stop skipped is
    done on resume."""
    if run.evaluation_due and run.evaluated_at != run.step and not should_stop(run):
        with run.log.step(run.step) as log:
            log.add(sandbox_metrics())
            run_evaluation(run, log)
        run.evaluated_at = run.step


def sandbox_metrics() -> Metrics:
    """Flag steps in which programs ran without bubblewrap."""
    return {"sandbox/unsafe": 1.0} if unprotected() else {}


def training_step(run: Run, log: StepLog) -> None:
    """One step: rollout, credit assignment, update, then load the new weights into the engine."""
    algorithm = run.algorithm.at_step(run.step)
    started = time.perf_counter()
    with log.phase("rollout"):
        episodes, counterfactuals = collect_episodes(run, run.plan(run.step), run.config.episodes_per_task)
        run.engine.clear()  # free the KV cache for the update; every step starts with an empty one
    sampled = sum(len(turn.response_ids) for e in episodes for turn in e.turns if not turn.replayed)
    rate = sampled / (time.perf_counter() - started)
    run.memory[SAMPLED] = run.memory.get(SAMPLED, 0) + sampled
    log.add(rollout_metrics(episodes) | {"sampled_tokens": sampled, "tokens_per_second": rate})
    log.add(run.collector.metrics())
    if run.processes.is_main:
        run.collector.decode_prompts([*episodes, *counterfactuals.values()])
    log.episodes(episodes, list(counterfactuals.values()))
    played = drop_failed(episodes, run.config.rollout.max_failed)
    require_turns(run, played)
    with log.phase("credit"):
        log.add(assign_credit(run, played, counterfactuals) | turn_metrics(played, run.learners))
    with log.phase("update"):
        for learner in run.learners.values():
            learner.begin(run.step)
        with recording_tokens(run.learners, played) as before:
            if algorithm.trains_policies(run.step):
                log.add(algorithm.update(run.learners, make_batches(played), run.rng, run.step))
        if run.critic is not None:
            log.add(run.critic.fit(played, run.step))
        for policy, learner in run.learners.items():
            run.engine.weights_changed(policy, learner.version)
        log.add(opponents.snapshot_if_due(run.config, run.step, run.memory, run.learners, run.engine))
    with log.phase("record"):
        measure_movement(run.learners, played, before, run.step)
        log.add(entropy_errors(played, before))
    collapse_metrics, warnings = collapse.watch(run.config, run.memory, played, log.metrics)
    log.add(collapse_metrics)
    for line in warnings if run.processes.is_main else ():
        print(f"step {run.step + 1}: {line}", file=sys.stderr)


def require_turns(run: Run, played: list[Episode]) -> None:
    """Stop a run whose workflow samples no turns: it would train on nothing."""
    if played and not any(episode.turns for episode in played):
        silent = f"no role took a turn in any of {len(played)} episodes of {type(run.collector.workflow).__name__}"
        ask = "its `run` must call roles, as in `turn = await team[role].say(prompt)`"
        raise NoTurns(f"workflow: {silent}, so there is nothing to learn from; {ask}")
    turns = [turn for episode in played for turn in episode.turns]
    longest = max((turn for turn in turns if turn.trainable), key=lambda turn: len(turn.prompt_ids), default=None)
    if longest is not None and not any(turn.response_ids for turn in turns):
        full = f"no turn of {len(played)} episodes had room for a token: prompts fill the context"
        size = f"{longest.role} was asked with {len(longest.prompt_ids)} tokens"
        raise NoTurns(f"workflow: {full} ({size}); shorten them, or see engine.context and the model's own")


def collect_episodes(run: Run, plan: Plan, repeats: int) -> tuple[list[Episode], dict[str, Episode]]:
    """The rollout of a step: the episodes to train on, and the counterfactual ones by their id."""
    collector, players = run.collector, plan.players
    episodes = collector.collect(plan.tasks, repeats, players, plan.seed)
    learning = run.algorithm.trained_policies(run.learners, run.step)
    while forks := run.algorithm.forks(episodes, learning):
        episodes += collector.fork(forks, players)
    counterfactuals = collector.fork(run.credit.forks(episodes), players)
    return episodes, {episode.id: episode for episode in drop_failed(counterfactuals, run.config.rollout.max_failed)}


def assign_credit(run: Run, played: list[Episode], counterfactuals: dict[str, Episode]) -> Metrics:
    """Score the turns with the policies, then assign credit and compute advantages."""
    algorithm = run.algorithm
    read_policies(run, played)
    metrics = drop_stale(played, run.learners, run.collector.versions(run.learners))
    drop_other_rounds(played, algorithm, run.step)
    metrics |= run.credit.assign(played, counterfactuals, team_chain=algorithm.chain == "team")
    name = type(algorithm).__name__
    metrics |= checked_metrics(f"{name}.compute_advantages", algorithm.compute_advantages(played, run.memory))
    check_advantages(name, played)
    clear_dropped_advantages(played)
    explain_left_out(played, run.learners)
    return metrics | count_silent(played, run.config.roles)


def read_policies(run: Run, played: list[Episode]) -> None:
    """Before any update: the reference and old log-probs, entropies and values that the algorithm needs."""
    algorithm = run.algorithm
    on_trunk = algorithm.needs_values and run.critic is None
    if algorithm.kl > 0 or algorithm.needs_old_logprobs or algorithm.needs_entropy or on_trunk:
        for policy, batch in make_batches(played, require_advantages=False).items():
            learner = run.learners[policy]
            if learner.frozen:
                continue  # a frozen policy counts as environment
            if algorithm.kl > 0:
                scatter_to_turns(played, batch, learner.logprobs(batch, reference=True), "ref_logprobs")
            if algorithm.needs_old_logprobs or algorithm.needs_entropy or on_trunk:
                scores = learner.scores(batch)
                if algorithm.needs_old_logprobs:
                    scatter_to_turns(played, batch, scores.logprobs, "old_logprobs")
                if algorithm.needs_entropy:
                    scatter_to_turns(played, batch, scores.entropy, "entropy")
                if on_trunk and scores.values is not None:
                    scatter_to_turns(played, batch, scores.values, "values")
    if run.critic is not None:
        run.critic.read(played)


def run_evaluation(run: Run, log: StepLog) -> None:
    """Evaluate the current weights on the held-out tasks; checkpoint them if they are the best so far."""
    with log.phase("eval"):
        players, seed = run.players(evaluating=True), stable_hash(run.config.seed, "eval")
        report = evaluate(run.collector, run.held_out, run.config.eval.episodes_per_task, players, seed)
        run.engine.clear()
    log.add({f"eval/{name}": value for name, value in report.metrics.items()})
    if run.processes.is_main:
        run.collector.decode_prompts(report.episodes)
    log.held_out(report.episodes)
    if run.best is None or report.metrics["reward"] > run.best:
        run.best = report.metrics["reward"]
        if run.keeps_best:
            checkpoint.save(run, best=True)
