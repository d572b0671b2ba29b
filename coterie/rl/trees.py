"""Trees of joint actions: what a whole team said in a round is a node, what it said next is a child."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from coterie.types import Episode, Turn


@dataclass(frozen=True)
class Node:
    """One joint action, in the episode in which it was said first."""

    name: tuple[str, int]  # its episode and its round
    parent: tuple[str, int] | None  # None: said first of all
    episode: Episode
    turns: tuple[Turn, ...]  # without those that a workflow has left aside


def levels(turns: Sequence[Turn]) -> list[int]:
    """The round of the team in which each turn was asked for.

    That is the role's own, but for a role that speaks more seldom than others: its turn belongs to the round that had
    been reached, so that every round is a stretch of the episode.

        left 0   right 0   left 1   right 1   →  0 0 1 1
        left 0   left 1    right 0            →  0 1 1
    """
    return list(accumulate((turn.round for turn in turns), max))


def tree(episodes: Sequence[Episode]) -> list[Node]:
    """Every joint action once; rounds that a fork repeats are its origin's."""
    by_id = {episode.id: episode for episode in episodes}
    return [
        Node(
            (episode.id, level),
            _parent(episode, level, by_id),
            episode,
            tuple(turn for turn in turns if turn.trainable),
        )
        for episode in episodes
        for level, turns in said(episode).items()
    ]


def said(episode: Episode) -> dict[int, list[Turn]]:
    """The turns that were sampled in this very episode, by the team's round."""
    rounds: dict[int, list[Turn]] = {}
    for turn, level in zip(episode.turns, levels(episode.turns), strict=True):
        if not turn.replayed:
            rounds.setdefault(level, []).append(turn)
    return rounds


def _parent(episode: Episode, level: int, by_id: Mapping[str, Episode]) -> tuple[str, int] | None:
    """The round before, in the episode in which it was said first."""
    while level - 1 not in said(episode):
        if episode.origin is None or level == 0:
            return None
        episode = by_id[episode.origin]
    return episode.id, level - 1


def returns(
    rewards: Mapping[tuple[str, int], float], parents: Mapping[tuple[str, int], tuple[str, int] | None], gamma: float
) -> dict[tuple[str, int], float]:
    """What each node earned and, discounted, the mean of what its children return."""
    children: dict[tuple[str, int] | None, list[tuple[str, int]]] = {}
    for name, parent in parents.items():
        children.setdefault(parent, []).append(name)
    found: dict[tuple[str, int], float] = {}
    # Children stand a round later than their parent, so the last round comes first.
    for name in sorted(parents, key=lambda name: -name[1]):
        below = [found[child] for child in children[name]] if name in children else []
        found[name] = rewards[name] + (gamma * sum(below) / len(below) if below else 0.0)
    return found
