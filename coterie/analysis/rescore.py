"""Rescores stored episodes: replays their workflow with the recorded turns, and grades the answers again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from coterie.config import Config, ConfigError
from coterie.engines.text_player import TextReply
from coterie.rollout.agent import Player
from coterie.rollout.collector import Collector
from coterie.training.models import chats_of
from coterie.types import Env, Episode, Fork, Message, Sample, Sampling, Weights

WHY = "; a workflow may depend only on its task and on the replies"


class NoEngine:
    """An engine that must not be called: every turn is recorded."""

    async def sample(self, policy: str, *_: Any, **__: Any) -> Sample:
        raise RuntimeError(f"{policy} was called for a turn that is not recorded{WHY}")

    def weights_changed(self, policy: str, version: int, weights: Weights | None = None) -> None: ...
    def clear(self) -> None: ...


class NoPlayer:
    """An endpoint or a person that must not be asked: every turn is recorded."""

    async def reply(self, messages: Sequence[Message], seed: int, sampling: Sampling) -> TextReply:
        raise RuntimeError(f"an endpoint was asked for a turn that is not recorded{WHY}")


def rescore_episodes(episodes: Sequence[Episode], config: Config, env: Env) -> None:
    """Write the rewards that `env` gives, and the turn rewards of the workflow's judge.

    The workflow runs again with the recorded turns, programs and searches included: it alone can compute the answers
    that its judge grades.
    """
    workflow, limits = config.workflow.instance, config.rollout
    collector = Collector(
        workflow,
        env,
        NoEngine(),
        chats_of(config),
        limits.concurrency,
        limits.deadline,
        None,
        text_players={name: NoPlayer() for name, policy in config.policies.items() if policy.by_text},
    )
    forks = [Fork(e, "again", {(turn.role, turn.round): turn for turn in e.turns}) for e in episodes]
    for episode, fresh in zip(episodes, collector.fork(forks, _players(episodes)), strict=True):
        if fresh.error is not None:
            why = fresh.error.strip().rpartition("\n")[2]
            raise ConfigError(f"reward: {episode.id} cannot be rescored by its workflow: {why}")
        episode.reward, episode.correct, episode.metrics = fresh.reward, fresh.correct, fresh.metrics
        judged = {(turn.role, turn.round): turn for turn in fresh.turns}
        for turn in episode.turns:
            again = judged[turn.role, turn.round]
            turn.reward, turn.score, turn.correct = again.reward, again.score, again.correct


def _players(episodes: Sequence[Episode]) -> dict[str, Player]:
    """The policy of each role's turns in a step."""
    players: dict[str, dict[int, str]] = {}
    for turn in (turn for episode in episodes for turn in episode.turns):
        players.setdefault(turn.role, {})[turn.round] = turn.policy
    return {role: _player(by_round) for role, by_round in players.items()}


def _player(by_round: Mapping[int, str]) -> Player:
    first, *later = (by_round[nth] for nth in sorted(by_round))
    return Player(first, Sampling(), tuple(later))
