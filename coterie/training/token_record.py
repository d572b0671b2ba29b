"""Per-token records of an update: the entropy, and how far each log-prob moved.

Entropies are those of the update's own forward pass, so they cost nothing. Movement needs another forward pass after
the update; it is measured for whole tasks, about one in sixteen, so that the pass stays below 2 % of a step.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import ceil

from torch import Tensor

from coterie.learners.batch import make_batches, scatter_to_turns, trained_turns
from coterie.rollout.metrics import ByTask
from coterie.types import Episode, Learner, Metrics

ONE_IN = 16  # movement is measured for one task in 16

Before = dict[int, Tensor]  # id(turn) → log-probs before the update [L]


@contextmanager
def recording_tokens(learners: Mapping[str, Learner], played: Sequence[Episode]) -> Iterator[Before]:
    """Around the update: write `turn.entropy`, and yield a dict that then has the log-probs before the update."""
    before: Before = {}
    for learner in learners.values():
        learner.recorded = {}
    yield before
    turns = trained_turns(played)
    for learner in learners.values():
        for index, (logprobs, entropy) in (learner.recorded or {}).items():
            turn = turns[index]
            # With several optimizer steps the first pass over a turn may come after a step on others.
            before[id(turn)] = logprobs if turn.old_logprobs is None else turn.old_logprobs
            turn.entropy = entropy if turn.entropy is None else turn.entropy
        learner.recorded = None


def measure_movement(learners: Mapping[str, Learner], played: Sequence[Episode], before: Before, step: int) -> None:
    """Write `turn.movement` of the trained turns of a few tasks."""
    episodes = _sample(played, step)
    turns = [turn for episode in episodes for turn in episode.turns if id(turn) in before]
    policies = {turn.policy for turn in turns}
    for policy, batch in make_batches(episodes, require_advantages=False).items():
        if policy in policies:
            scatter_to_turns(episodes, batch, learners[policy].logprobs(batch), "movement")
    for turn in (turn for episode in episodes for turn in episode.turns):
        known = turn.movement is not None and id(turn) in before
        turn.movement = turn.movement - before[id(turn)] if known else None  # type: ignore[operator]


def entropy_errors(played: Sequence[Episode], before: Before) -> Metrics:
    """The standard errors of the policies' entropies, over the turns that were trained on."""
    by_task = ByTask()
    for episode in played:
        for turn in episode.turns:
            if turn.entropy is not None and len(turn.entropy) and id(turn) in before:
                by_task.add(f"{turn.policy}/entropy", episode, float(turn.entropy.mean()))
    return by_task.errors()


def _sample(played: Sequence[Episode], step: int) -> list[Episode]:
    """The episodes of one in sixteen of the step's tasks; with fewer tasks, of one task every few steps."""
    tasks = list(dict.fromkeys(episode.task.id for episode in played))
    if not tasks or step % ceil(ONE_IN / len(tasks)):
        return []
    chosen = set(tasks[: max(1, len(tasks) // ONE_IN)])
    return [episode for episode in played if episode.task.id in chosen]
