"""Filters that drop turns from training: stale (off-policy) ones, and those of rounds that do not train now.

Turns are dropped before advantages are computed: the reward of a dropped turn must not enter a baseline, be it a group
mean, a moving average, or whitening statistics.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from coterie.algorithms.base import Algorithm
from coterie.types import Episode, Learner, LeftOut, Metrics, Turn


def count_silent(episodes: Sequence[Episode], roles: Iterable[str]) -> Metrics:
    """In how many episodes each role has no turn, as metrics `absent/<role>`."""
    present = [{turn.role for turn in episode.turns} for episode in episodes]
    return {f"absent/{role}": float(sum(role not in some for some in present)) for role in roles}


def drop_stale(
    episodes: Sequence[Episode], learners: Mapping[str, Learner], versions: Mapping[str, int] | None = None
) -> Metrics:
    """Drop and count turns whose weights version is not the expected one, as of an engine that missed an update.

    `versions`: the expected ones, older than the learners' if the rollout runs ahead; None: the learners' current ones.
    """
    expected = {policy: learner.version for policy, learner in learners.items()} if versions is None else versions
    sampled = [turn for episode in episodes for turn in episode.turns if turn.response_ids and turn.trainable]
    trained = [turn for turn in sampled if not learners[turn.policy].frozen]
    stale = [turn for turn in trained if turn.version != expected[turn.policy]]
    for turn in stale:
        turn.dropped = "stale"
    return {"stale": float(len(stale))}


def drop_other_rounds(episodes: Sequence[Episode], algorithm: Algorithm, step: int) -> None:
    """With `rotate_turns`: drop turns that are not of the round that trains at this step."""
    turns = [turn for episode in episodes for turn in episode.turns if turn.dropped != "stale"]
    rounds = 1 + max((turn.round for turn in turns), default=0)
    for turn in turns:
        is_resting = algorithm.rotate_turns is not None and turn.round != step // algorithm.rotate_turns % rounds
        turn.dropped = "round" if is_resting else None


def explain_left_out(episodes: Sequence[Episode], learners: Mapping[str, Learner]) -> None:
    """Write `turn.left_out` of every turn that will not be trained on; the group estimator has written its own."""
    for turn in (turn for episode in episodes for turn in episode.turns if turn.left_out is None):
        turn.left_out = turn.dropped or _untrained(turn, learners)


def _untrained(turn: Turn, learners: Mapping[str, Learner]) -> LeftOut | None:
    if turn.replayed:
        return "replayed"
    if not turn.response_ids:
        return "empty" if turn.trainable else "fixed"
    if turn.policy not in learners or learners[turn.policy].frozen:
        return "frozen"
    return None if turn.trainable and turn.advantages is not None else "excluded"


def clear_dropped_advantages(episodes: Sequence[Episode]) -> None:
    """Remove the advantages of dropped turns, in case an algorithm has written them all the same."""
    for turn in (turn for episode in episodes for turn in episode.turns if turn.dropped is not None):
        turn.advantages = None
