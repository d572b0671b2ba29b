"""`coterie replay`: recomputes the advantages of stored episodes under another algorithm, credit or reward."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from coterie.algorithms.base import Algorithm
from coterie.algorithms.turn_filters import clear_dropped_advantages, drop_other_rounds
from coterie.analysis.rescore import rescore_episodes
from coterie.config import Config, ConfigError
from coterie.config.conflicts import check_conflicts
from coterie.config.problems import Problems
from coterie.config.requirements import require_sandbox
from coterie.credit.base import Credit
from coterie.envs.base import attach_reward
from coterie.episode_files import episode_paths, step_of
from coterie.episode_rows import read_episodes
from coterie.training.build import open_models
from coterie.types import Episode, Turn


@dataclass(frozen=True)
class ReplayedTurn:
    """One turn with its advantage in the run and in the replay."""

    step: int
    episode: Episode
    turn: Turn
    reward: float  # of its episode, in the run
    before: float | None  # its mean advantage; None if it was excluded
    after: float | None

    @property
    def sign_changed(self) -> bool:
        """True if the advantage changed its sign."""
        return (self.before or 0.0) * (self.after or 0.0) < 0


def replay(folder: Path, config: Config, rescore: bool) -> Iterator[ReplayedTurn]:
    """Every trainable turn of the run, in order. `rescore`: also grade the answers again, with the workflow's judge."""
    algorithm, credit = config.algorithm.instance, config.credit.instance
    check_conflicts(config, training=False)
    _require_effect(config, algorithm)
    memory: dict[str, Any] = {}
    env = attach_reward(config.env.instance, config.reward.name, config.reward.options, config.rollout.score_deadline)
    if rescore:
        require_sandbox(config, env)
        open_models(config, env)
    # The purposes of the whole run's forks: in a single step all forks of one purpose may have failed.
    forks = episode_paths(folder / "counterfactuals")
    purposes = {episode.fork for path in forks for episode in read_episodes(path)}
    for path in _episode_files(folder):
        episodes = [episode for episode in read_episodes(path) if episode.error is None]
        replayed = [e for file in forks if step_of(file) == step_of(path) for e in read_episodes(file)]
        counterfactuals = [episode for episode in replayed if episode.error is None]
        before = [[_mean(turn.advantages) for turn in episode.turns] for episode in episodes]
        rewards = [episode.reward for episode in episodes]
        done = step_of(path) - 1  # completed steps: algorithms count from 0, files from 1
        _require_stored(algorithm, done, [turn for episode in episodes for turn in episode.turns])
        if rescore:
            rescore_episodes([*episodes, *counterfactuals], config, env)
        _require_counterfactuals(credit, episodes, purposes)
        drop_other_rounds(episodes, algorithm, done)
        _assign_credit(episodes, counterfactuals, algorithm, credit, memory)
        for episode, was, reward in zip(episodes, before, rewards, strict=True):
            for turn, advantage in zip(episode.turns, was, strict=True):
                if turn.trainable:
                    yield ReplayedTurn(step_of(path), episode, turn, reward, advantage, _mean(turn.advantages))


def _episode_files(folder: Path) -> list[Path]:
    paths = episode_paths(folder / "episodes")
    if not paths:
        raise ConfigError(f"{folder}: no stored episodes to replay; a run stores them while it trains")
    return paths


def _assign_credit(
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


def _require_stored(algorithm: Algorithm, step: int, turns: Sequence[Turn]) -> None:
    """Values, entropies and reference log-probs are computed during the run; a replay cannot recompute them."""
    needed = {
        "values": algorithm.needs_values,
        "entropy": algorithm.needs_entropy,
        "ref_logprobs": algorithm.kl > 0 and algorithm.kl_in == "reward",
        "utility": algorithm.needs_utility(step),
    }
    for turn in (turn for turn in turns if turn.response_ids and turn.trainable):
        for name in (name for name, is_needed in needed.items() if is_needed and getattr(turn, name) is None):
            raise ConfigError(
                f"algorithm: {type(algorithm).__name__} needs the {name} of {turn.role}'s turns, which this run did "
                "not store; group-based algorithms need none"
            )


def _require_counterfactuals(credit: Credit, episodes: Sequence[Episode], purposes: Collection[str | None]) -> None:
    """Counterfactual episodes are played during the run; a replay cannot sample them."""
    for purpose in (fork.purpose for fork in credit.forks(episodes) if fork.purpose not in purposes):
        raise ConfigError(
            f"credit: {type(credit).__name__} needs counterfactual episodes {purpose}, which this run did not play; "
            "credit.by=leave_one_out needs none"
        )


def _require_effect(config: Config, algorithm: Algorithm) -> None:
    """Reject changes that no advantage depends on: the replay would show no difference."""
    problems = Problems(config.sources)
    ineffective = algorithm.not_in_advantage | ({"kl"} if algorithm.kl_in == "loss" else set())
    for path in config.sources.overridden():
        if path[0] == "algorithm" and path[-1] in ineffective:
            problems.add(path, "has no effect here: advantages do not depend on it")
        if path == ("credit", "default"):
            problems.add(path, "has no effect here: the counterfactual replies were sampled during the run")
    problems.raise_any()


def _mean(advantages: Tensor | None) -> float | None:
    if advantages is None:
        return None
    return float(torch.as_tensor(advantages, dtype=torch.float64).mean()) if len(advantages) else 0.0
