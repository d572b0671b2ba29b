"""Trees of joint actions (MAGRPO): a node is all messages of a round, its children are the rounds that follow it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from coterie.types import Episode, Turn


@dataclass(frozen=True)
class Node:
    """One joint action, in the episode in which it was sampled."""

    name: tuple[str, int]  # its episode and its round
    parent: tuple[str, int] | None  # None for a first round
    episode: Episode
    turns: tuple[Turn, ...]  # the trainable ones


def team_rounds(turns: Sequence[Turn]) -> list[int]:
    """The team's round of each turn: the highest role round reached so far.

    A turn of a role that speaks less often than others counts to the round that the team has reached, so that every
    round is a contiguous part of the episode.

        left 0   right 0   left 1   right 1   →  0 0 1 1
        left 0   left 1    right 0            →  0 1 1
    """
    return list(accumulate((turn.round for turn in turns), max))


def joint_actions(episodes: Sequence[Episode]) -> list[Node]:
    """Every joint action once; rounds that a fork replays belong to its origin."""
    by_id = {episode.id: episode for episode in episodes}
    return [
        Node((episode.id, level), _parent(episode, level, by_id), episode, tuple(t for t in turns if t.trainable))
        for episode in episodes
        for level, turns in sampled_rounds(episode).items()
    ]


def sampled_rounds(episode: Episode) -> dict[int, list[Turn]]:
    """The turns sampled in this episode, by the team's round; a fork's replayed turns are left out."""
    rounds: dict[int, list[Turn]] = {}
    for turn, level in zip(episode.turns, team_rounds(episode.turns), strict=True):
        if not turn.replayed:
            rounds.setdefault(level, []).append(turn)
    return rounds


def _parent(episode: Episode, level: int, by_id: Mapping[str, Episode]) -> tuple[str, int] | None:
    """The round before, in the episode in which it was sampled."""
    while level - 1 not in sampled_rounds(episode):
        if episode.origin is None or level == 0:
            return None
        episode = by_id[episode.origin]
    return episode.id, level - 1


def tree_returns(
    rewards: Mapping[tuple[str, int], float], parents: Mapping[tuple[str, int], tuple[str, int] | None], gamma: float
) -> dict[tuple[str, int], float]:
    """G(node) = reward + γ · mean of the children's returns."""
    children: dict[tuple[str, int] | None, list[tuple[str, int]]] = {}
    for name, parent in parents.items():
        children.setdefault(parent, []).append(name)
    found: dict[tuple[str, int], float] = {}
    # Children are one round later than their parent, so the last round comes first.
    for name in sorted(parents, key=lambda name: -name[1]):
        below = [found[child] for child in children[name]] if name in children else []
        found[name] = rewards[name] + (gamma * sum(below) / len(below) if below else 0.0)
    return found
