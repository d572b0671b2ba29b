"""Evaluates a team on held-out tasks: reward, pass@k, tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import comb

from coterie.envs.base import ACCEPTED
from coterie.rollout.agent import Players
from coterie.rollout.collector import Collector
from coterie.rollout.metrics import rollout_metrics
from coterie.statistics import mean
from coterie.types import Episode, Metrics, Task, is_correct


@dataclass(frozen=True)
class Report:
    """The result of one evaluation."""

    metrics: Metrics
    episodes: list[Episode]


def evaluate(collector: Collector, tasks: Sequence[Task], repeats: int, players: Players, seed: int) -> Report:
    """Mean reward, pass@1, pass@k for k repeats, tokens per episode, and the metrics of each role.

    A failed episode counts as reward 0: otherwise a team that fails on all tasks but one would look perfect.
    """
    episodes = collector.collect(tasks, repeats, players, seed)
    metrics = rollout_metrics(episodes)
    metrics["reward"] = mean([episode.reward if episode.error is None else 0.0 for episode in episodes])
    correct = _correct_by_task(episodes).values()
    metrics["pass@1"] = mean([pass_at_k(len(c), sum(c), 1) for c in correct])
    if repeats > 1:
        metrics[f"pass@{repeats}"] = mean([pass_at_k(len(c), sum(c), repeats) for c in correct])
    metrics["tokens"] = mean([sum(turn.tokens[1] for turn in e.turns) for e in episodes])
    metrics["prompt_tokens"] = mean([sum(turn.tokens[0] for turn in e.turns) for e in episodes])
    return Report(metrics, episodes)


def pass_at_k(n: int, correct: int, k: int) -> float:
    """The unbiased estimate of the chance that at least one of k samples is correct, when `correct` of n were."""
    return 1.0 - comb(n - correct, k) / comb(n, k)


def accuracy_by_task(episodes: Sequence[Episode]) -> dict[str, float]:
    """The share of each task's episodes that were correct; failed ones count as wrong."""
    return {task: mean(correct) for task, correct in _correct_by_task(episodes).items()}


def reward_by_task(episodes: Sequence[Episode]) -> dict[str, float]:
    """The mean reward of each task's episodes; failed ones count as 0."""
    by_task: dict[str, list[float]] = {}
    for episode in episodes:
        by_task.setdefault(episode.task.id, []).append(episode.reward if episode.error is None else 0.0)
    return {task: mean(rewards) for task, rewards in by_task.items()}


def _correct_by_task(episodes: Sequence[Episode]) -> dict[str, list[bool]]:
    by_task: dict[str, list[bool]] = {}
    for episode in episodes:
        by_task.setdefault(episode.task.id, []).append(episode.error is None and _is_right(episode))
    return by_task


def _is_right(episode: Episode) -> bool:
    """By the grader's label; without one, by the verifier's decision (its score is rarely 1); else by a full reward."""
    if episode.correct is not None:
        return episode.correct
    return is_correct(episode.metrics.get(ACCEPTED, episode.reward))
