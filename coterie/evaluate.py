"""Plays held-out tasks and says how well the team did, beside what one agent does with as many tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import comb

from coterie.rollout import Collector, Seat, mean, summary
from coterie.types import Episode, Metrics, Task
from coterie.workflows.single import Single
from coterie.workflows.vote import Vote


@dataclass(frozen=True)
class Report:
    """One way of answering the held-out tasks, measured."""

    metrics: Metrics
    episodes: list[Episode]


def evaluate(collector: Collector, tasks: Sequence[Task], repeats: int, seats: Mapping[str, Seat], seed: int) -> Report:
    """Reward, pass@1, pass@k for k repeats, tokens an episode, and the metrics of each role.

    A failed episode earns nothing: else a team that fails at all but one task would look perfect.
    """
    episodes = collector.collect(tasks, repeats, seats, seed)
    metrics = summary(episodes)
    metrics["reward"] = mean([episode.reward if episode.error is None else 0.0 for episode in episodes])
    right = _right_by_task(episodes)
    metrics["pass@1"] = mean([pass_at(len(r), sum(r), 1) for r in right])
    if repeats > 1:
        metrics[f"pass@{repeats}"] = mean([pass_at(len(r), sum(r), repeats) for r in right])
    metrics["tokens"] = mean([sum(len(turn.response_ids) for turn in e.turns) for e in episodes])
    return Report(metrics, episodes)


def baselines(
    collector: Collector, tasks: Sequence[Task], repeats: int, seat: Seat, team_tokens: float, seed: int
) -> dict[str, Report]:
    """One agent alone, and the majority of as many of its answers as fit into the team's tokens.

    `seat` is who answers alone; it may say as much in one answer as the whole team could.
    """
    alone = replace(collector, workflow=Single(role="solver"))
    single = evaluate(alone, tasks, repeats, {"solver": seat}, seed)
    voters = max(1, round(team_tokens / max(single.metrics["tokens"], 1.0)))
    voting = replace(collector, workflow=Vote(role="solver", voters=voters))
    heated = replace(seat, sampling=replace(seat.sampling, temperature=seat.sampling.temperature or 1.0))
    vote = evaluate(voting, tasks, repeats, {"solver": heated}, seed)
    return {"single agent": single, f"majority of {voters}": vote}


def pass_at(n: int, right: int, k: int) -> float:
    """The chance that at least one of k answers is right, when `right` of n were (unbiased)."""
    return 1.0 - comb(n - right, k) / comb(n, k)


def _right_by_task(episodes: Sequence[Episode]) -> list[list[bool]]:
    """Failed episodes count as wrong."""
    by_task: dict[str, list[bool]] = {}
    for episode in episodes:
        by_task.setdefault(episode.task.id, []).append(episode.error is None and episode.reward >= 1)
    return list(by_task.values())
