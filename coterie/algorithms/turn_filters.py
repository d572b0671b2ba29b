"""Turns that nobody learns from, and how many there are.

Turns are dropped before credit is given: a reward that nobody learns from must not move a baseline, be it the mean of a
group, a running average that is kept for later steps, or the statistics that advantages are whitened by.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from coterie.algorithms.base import Algorithm
from coterie.types import Episode, Learner, Metrics


def absent(episodes: Sequence[Episode], roles: Iterable[str]) -> Metrics:
    """In how many episodes each role said nothing, and so has nothing to learn from."""
    spoke = [{turn.role for turn in episode.turns} for episode in episodes]
    return {f"absent/{role}": float(sum(role not in there for there in spoke)) for role in roles}


def drop_stale(episodes: Sequence[Episode], learners: Mapping[str, Learner]) -> Metrics:
    """Drop turns that were sampled with other weights than those that would learn from them, as by an engine that has
    missed an update; count them."""
    said = [turn for episode in episodes for turn in episode.turns if turn.response_ids and turn.trainable]
    learned = [turn for turn in said if not learners[turn.policy].frozen]
    stale = [turn for turn in learned if turn.version != learners[turn.policy].version]
    for turn in stale:
        turn.dropped = "stale"
    return {"stale": float(len(stale))}


def drop_other_rounds(episodes: Sequence[Episode], algorithm: Algorithm, step: int) -> None:
    """With `rotate_turns`: drop turns that are not of the round that trains at this step."""
    turns = [turn for episode in episodes for turn in episode.turns if turn.dropped != "stale"]
    rounds = 1 + max((turn.round for turn in turns), default=0)
    for turn in turns:
        rests = algorithm.rotate_turns is not None and turn.round != step // algorithm.rotate_turns % rounds
        turn.dropped = "round" if rests else None


def take_back(episodes: Sequence[Episode]) -> None:
    """Take back the advantages of dropped turns, where an algorithm has judged them all the same."""
    for turn in (turn for episode in episodes for turn in episode.turns if turn.dropped is not None):
        turn.advantages = None
