"""Plays stored episodes through their workflow once more, with the words that were said, to judge them anew."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

from coterie.config import Config, ConfigError
from coterie.models.chat import Chat
from coterie.models.store import load_end_ids, load_tokenizer, resolve
from coterie.rollout.agent import Player
from coterie.rollout.collector import Collector
from coterie.training import opponents
from coterie.types import Env, Episode, Fork, Sample, Sampling

HOW = "; what a workflow asks may only depend on its task and on what was said"


class Silent:
    """An engine that must not be asked."""

    async def sample(self, policy: str, prompt_ids: Sequence[int], seed: int, sampling: Sampling) -> Sample:
        raise RuntimeError(f"{policy} is asked for a turn that was not said{HOW}")

    def weights_changed(self, policy: str, version: int) -> None: ...


def score_again(episodes: Sequence[Episode], config: Config, env: Env) -> None:
    """Write down what `env` gives for the episodes, and what their workflow makes of it for single turns.

    A workflow judges its turns by grades of its own answers: only it knows which. So it runs again, programs and
    searches included, while its roles say what they said.
    """
    workflow, limits = config.workflow.instance, config.rollout
    collector = Collector(workflow, env, Silent(), _chats(config), limits.concurrency, limits.deadline, None)
    forks = [Fork(e, "again", {(turn.role, turn.round): turn for turn in e.turns}) for e in episodes]
    for episode, fresh in zip(episodes, collector.fork(forks, _players(episodes)), strict=True):
        if fresh.error is not None:
            why = fresh.error.strip().rpartition("\n")[2]
            raise ConfigError(f"reward: {episode.id} cannot be judged again by its workflow: {why}")
        episode.reward, episode.metrics = fresh.reward, fresh.metrics
        judged = {(turn.role, turn.round): turn.reward for turn in fresh.turns}
        for turn in episode.turns:
            turn.reward = judged[turn.role, turn.round]


def _players(episodes: Sequence[Episode]) -> dict[str, Player]:
    """Who played what in a step, turn by turn."""
    players: dict[str, dict[int, str]] = {}
    for turn in (turn for episode in episodes for turn in episode.turns):
        players.setdefault(turn.role, {})[turn.round] = turn.policy
    return {role: _player(by_round) for role, by_round in players.items()}


def _player(by_round: Mapping[int, str]) -> Player:
    first, *later = (by_round[nth] for nth in sorted(by_round))
    return Player(first, Sampling(), tuple(later))


def _chats(config: Config) -> dict[str, Chat]:
    """How each policy's model writes conversations; its weights are not needed."""
    policies = opponents.with_slots(config).policies
    return {name: _chat(resolve(policy.model)) for name, policy in policies.items()}


@cache
def _chat(folder: Path) -> Chat:
    return Chat(load_tokenizer(folder), load_end_ids(folder))
