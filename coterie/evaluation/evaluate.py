"""Plays held-out tasks and says how well the team did, beside what one agent does with as many tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import comb

from coterie.evaluation.single_agent_baseline import SOLVER, SingleAgentWorkflow, fit_token_budget, with_temperature
from coterie.rollout.agent import Player
from coterie.rollout.collector import Collector
from coterie.rollout.metrics import rollout_metrics
from coterie.statistics import mean
from coterie.types import Episode, Metrics, Task, is_correct

MEASURED = 32  # tasks by which the length of a drawn answer is known


@dataclass(frozen=True)
class Report:
    """One way of answering the held-out tasks, measured."""

    metrics: Metrics
    episodes: list[Episode]


def evaluate(
    collector: Collector, tasks: Sequence[Task], repeats: int, players: Mapping[str, Player], seed: int
) -> Report:
    """Reward, pass@1, pass@k for k repeats, tokens an episode, and the metrics of each role.

    A failed episode earns nothing: else a team that fails at all but one task would look perfect.
    """
    episodes = collector.collect(tasks, repeats, players, seed)
    metrics = rollout_metrics(episodes)
    metrics["reward"] = mean([episode.reward if episode.error is None else 0.0 for episode in episodes])
    right = _outcomes(episodes).values()
    metrics["pass@1"] = mean([pass_at_k(len(r), sum(r), 1) for r in right])
    if repeats > 1:
        metrics[f"pass@{repeats}"] = mean([pass_at_k(len(r), sum(r), repeats) for r in right])
    metrics["tokens"] = mean([sum(len(turn.response_ids) for turn in e.turns) for e in episodes])
    metrics["prompt_tokens"] = mean([sum(len(turn.prompt_ids) for turn in e.turns) for e in episodes])
    return Report(metrics, episodes)


@dataclass(frozen=True)
class SingleAgent:
    """Who answers alone, and what it is asked."""

    policy: str  # whose model it is
    player: Player
    asked: SingleAgentWorkflow
    temperature: float = 1.0  # of the policy in training; it votes at this where evaluation draws nothing


def baselines(
    collector: Collector, tasks: Sequence[Task], repeats: int, team: Report, alone: Mapping[str, SingleAgent], seed: int
) -> dict[str, Report]:
    """Each agent alone; then the majority of as many answers of the better one as the team's tokens pay for."""

    def played(
        asked: SingleAgentWorkflow, player: Player, tasks: Sequence[Task] = tasks, repeats: int = repeats
    ) -> Report:
        return evaluate(replace(collector, workflow=asked), tasks, repeats, {SOLVER: player}, seed)

    reports = {name: played(lone.asked, lone.player) for name, lone in alone.items()}
    better = alone[max(reports, key=lambda name: reports[name].metrics["reward"])]
    # Not by the length of the likeliest answer: who draws speaks longer.
    voter = with_temperature(better.player, better.temperature)
    drawn = played(better.asked, voter, tasks[:MEASURED], 1)
    player, voters = fit_token_budget(voter, team.metrics["tokens"], drawn.metrics["tokens"])
    return {**reports, f"majority of {voters}": played(replace(better.asked, voters=voters), player)}


def pass_at_k(n: int, right: int, k: int) -> float:
    """The chance that at least one of k answers is right, when `right` of n were (unbiased)."""
    return 1.0 - comb(n - right, k) / comb(n, k)


def right_by_task(episodes: Sequence[Episode]) -> dict[str, float]:
    """The share of each task's episodes that were right; failed ones count as wrong."""
    return {task: mean(right) for task, right in _outcomes(episodes).items()}


def _outcomes(episodes: Sequence[Episode]) -> dict[str, list[bool]]:
    """By task, whether each episode was right."""
    by_task: dict[str, list[bool]] = {}
    for episode in episodes:
        by_task.setdefault(episode.task.id, []).append(episode.error is None and is_correct(episode.reward))
    return by_task
