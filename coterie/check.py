"""Plays a few episodes as a run's first step would, without learning from them."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence

from coterie.algorithms.group import Group
from coterie.batch import make_batches
from coterie.findings import DryRun, Gap
from coterie.tasks import TaskStream
from coterie.train import Run, judge, play
from coterie.types import Episode


def dry_run(run: Run, tasks: int, repeats: int) -> DryRun:
    """Play the first tasks of the run as its first step would, and judge them."""
    chosen = TaskStream(run.tasks.tasks, tasks, run.config.seed).next()
    started = time.perf_counter()
    episodes, otherwise = play(run, chosen, repeats)
    run.engine.clear()
    played = [episode for episode in episodes if episode.error is None]
    metrics = judge(run, played, otherwise) if played else {}
    known = time.perf_counter()
    gaps = compare(run, played)
    compared = time.perf_counter()
    # A backward pass costs about two forward ones.
    seconds = known - started + 3 * (compared - known) * run.algorithm.epochs
    larger = run.config.tasks_per_step * run.config.episodes_per_task / len(episodes)
    return DryRun(
        episodes,
        list(run.seats()),
        frozenset(policy for policy, learner in run.learners.items() if not learner.frozen),
        metrics,
        group_sizes(run, played),
        gaps,
        dialogue(run, played),
        larger * sum(len(turn.response_ids) for episode in episodes for turn in episode.turns),
        larger * seconds,
    )


def compare(run: Run, played: Sequence[Episode]) -> dict[str, Gap]:
    """The learner's log-probs of what was sampled beside the sampler's own, for each policy."""
    gaps = {}
    for policy, batch in make_batches(played, judged=False).items():
        off = (run.learners[policy].logprobs(batch) - batch.logprobs)[batch.mask].abs()
        gaps[policy] = Gap(float(off.mean()), float(off.max()))
    return gaps


def group_sizes(run: Run, played: Sequence[Episode]) -> list[int]:
    if not isinstance(run.algorithm, Group):
        return []
    return list(Counter(sample.key for sample in run.algorithm.samples(played)).values())


def dialogue(run: Run, played: Sequence[Episode]) -> dict[str, tuple[str, str, str]]:
    """For each role of the first episode what it read and said, control tokens and all, and how it stopped."""
    shown: dict[str, tuple[str, str, str]] = {}
    for turn in played[0].turns if played else ():
        tokenizer = run.collector.chats[turn.policy].tokenizer
        read_ids, said_ids = list(turn.prompt_ids), list(turn.response_ids)
        shown.setdefault(turn.role, (str(tokenizer.decode(read_ids)), str(tokenizer.decode(said_ids)), turn.stop))
    return shown
