"""Turns that nobody learns from, and how many there are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from coterie.algorithms.base import Algorithm
from coterie.types import Episode, Learner, Metrics


def absent(episodes: Sequence[Episode], roles: Iterable[str]) -> Metrics:
    """In how many episodes each role said nothing, and so has nothing to learn from."""
    spoke = [{turn.role for turn in episode.turns} for episode in episodes]
    return {f"absent/{role}": float(sum(role not in there for there in spoke)) for role in roles}


def fresh(episodes: Sequence[Episode], learners: Mapping[str, Learner]) -> Metrics:
    """Leave out turns that were said by other weights than those that would learn from them, as by an engine that has
    missed an update: they lose their advantages, and are counted."""
    judged = [turn for episode in episodes for turn in episode.turns if turn.advantages is not None]
    stale = [turn for turn in judged if turn.version != learners[turn.policy].version]
    for turn in stale:
        turn.advantages = None
    return {"stale": float(len(stale))}


def only_this_round(episodes: Sequence[Episode], algorithm: Algorithm, step: int) -> None:
    """With `rotate_turns`: leave out turns that are not of the round that trains at this step."""
    turns = [turn for episode in episodes for turn in episode.turns]
    if algorithm.rotate_turns is None or not turns:
        return
    rounds = 1 + max(turn.round for turn in turns)
    for turn in turns:
        if turn.round != step // algorithm.rotate_turns % rounds:
            turn.advantages = None
