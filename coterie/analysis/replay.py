"""Judges the stored episodes of a run again, under another algorithm, credit or reward. Nothing is sampled."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from coterie.algorithms.base import Algorithm
from coterie.algorithms.turn_filters import clear_dropped_advantages, drop_other_rounds
from coterie.analysis.rescore import score_again
from coterie.config import Config, ConfigError
from coterie.config.conflicts import check_conflicts
from coterie.config.problems import Problems
from coterie.config.requirements import require_sandbox
from coterie.credit.base import Credit
from coterie.envs.base import attach_reward
from coterie.files import numbered_paths
from coterie.training.log import read_episodes
from coterie.types import Episode, Turn


@dataclass(frozen=True)
class Verdict:
    """One turn, as it was judged when it was played and as it is judged now."""

    step: int
    episode: Episode
    turn: Turn
    reward: float  # of its episode, before
    before: float | None  # its mean advantage; None where it was left out
    after: float | None

    @property
    def turned(self) -> bool:
        """Whether what was good is bad now, or the other way round."""
        return (self.before or 0.0) * (self.after or 0.0) < 0


def replay(folder: Path, config: Config, rescore: bool) -> Iterator[Verdict]:
    """Every turn of the run in the order of play. `rescore`: grade the answers again, too, and let the workflow judge
    its turns by that."""
    algorithm, credit = config.algorithm.instance, config.credit.instance
    check_conflicts(config, training=False)
    _must_matter(config, algorithm)
    memory: dict[str, Any] = {}
    env = attach_reward(config.env.instance, config.reward.name, config.reward.options, config.rollout.score_deadline)
    if rescore:
        require_sandbox(config, env)
    # Of the whole run: of one step all episodes with one purpose may have failed.
    purposes = {e.fork for path in numbered_paths(folder / "counterfactuals", ".jsonl") for e in read_episodes(path)}
    for path in _stored(folder):
        episodes = [episode for episode in read_episodes(path) if episode.error is None]
        aside = folder / "counterfactuals" / path.name
        counterfactuals = (
            [episode for episode in read_episodes(aside) if episode.error is None] if aside.is_file() else []
        )
        before = [[_mean(turn.advantages) for turn in episode.turns] for episode in episodes]
        rewards = [episode.reward for episode in episodes]
        done = int(path.stem) - 1  # steps before this one, by which algorithms count
        _must_know(algorithm, done, [turn for episode in episodes for turn in episode.turns])
        if rescore:
            score_again([*episodes, *counterfactuals], config, env)
        _must_have_played(credit, episodes, purposes)
        drop_other_rounds(episodes, algorithm, done)
        _judge_again(episodes, counterfactuals, algorithm, credit, memory)
        for episode, was, reward in zip(episodes, before, rewards, strict=True):
            for turn, advantage in zip(episode.turns, was, strict=True):
                if turn.trainable:
                    yield Verdict(int(path.stem), episode, turn, reward, advantage, _mean(turn.advantages))


def _stored(folder: Path) -> list[Path]:
    paths = numbered_paths(folder / "episodes", ".jsonl")
    if not paths:
        raise ConfigError(f"{folder}: there are no episodes to judge again; a run that has trained leaves them there")
    return paths


def _judge_again(
    episodes: list[Episode],
    counterfactuals: list[Episode],
    algorithm: Algorithm,
    credit: Credit,
    memory: dict[str, Any],
) -> None:
    for episode in episodes:
        for turn in episode.turns:
            turn.advantages = turn.returns = turn.credit = None
    credit.assign(episodes, {episode.id: episode for episode in counterfactuals}, team_chain=algorithm.chain == "team")
    algorithm.compute_advantages(episodes, memory)
    clear_dropped_advantages(episodes)


def _must_know(algorithm: Algorithm, step: int, turns: Sequence[Turn]) -> None:
    """What learners and critics thought is read at the time, and cannot be found out from the episodes."""
    needed = {
        "values": algorithm.needs_values,
        "entropy": algorithm.needs_entropy,
        "ref_logprobs": algorithm.kl > 0 and algorithm.kl_in == "reward",
        "utility": algorithm.needs_utility(step),
    }
    for turn in (turn for turn in turns if turn.response_ids and turn.trainable):
        for name in (name for name, asked in needed.items() if asked and getattr(turn, name) is None):
            raise ConfigError(
                f"algorithm: {type(algorithm).__name__} needs the {name} of {turn.role}'s turns, which this run did "
                "not take down; an algorithm that compares groups needs none"
            )


def _must_have_played(credit: Credit, episodes: Sequence[Episode], purposes: Collection[str | None]) -> None:
    """What would have happened otherwise is played at the time, and cannot be found out from the episodes either."""
    for purpose in (fork.purpose for fork in credit.forks(episodes) if fork.purpose not in purposes):
        raise ConfigError(
            f"credit: {type(credit).__name__} needs episodes {purpose}, which this run did not play; "
            "credit.by=leave_one_out needs none"
        )


def _must_matter(config: Config, algorithm: Algorithm) -> None:
    """Refuse changes that no advantage depends on: they would be answered with what was there before."""
    problems = Problems(config.sources)
    apart = algorithm.not_in_advantage | ({"kl"} if algorithm.kl_in == "loss" else set())
    for path in config.sources.overridden():
        if path[0] == "algorithm" and path[-1] in apart:
            problems.add(path, "has no effect here: what turns are worth does not depend on it")
        if path == ("credit", "default"):
            problems.add(path, "has no effect here: what was said instead was said when the run was played")
    problems.raise_any()


def _mean(advantages: Tensor | None) -> float | None:
    if advantages is None:
        return None
    return float(torch.as_tensor(advantages, dtype=torch.float64).mean()) if len(advantages) else 0.0
