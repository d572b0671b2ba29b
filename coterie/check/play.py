"""Plays a few episodes as a run's first step would, without learning from them; then gold and broken answers."""

from __future__ import annotations

import time
from collections.abc import Sequence

from coterie.check.echo_check import echoes, verdicts
from coterie.check.probes import broken, golden, one_by_one
from coterie.check.record import DryRun, Gap
from coterie.envs.base import reward_of
from coterie.learners.batch import make_batches
from coterie.training.loop import Run, assign_credit, collect_episodes
from coterie.training.tasks import TaskStream
from coterie.types import Episode, Turn


def dry_run(run: Run, tasks: int, repeats: int) -> DryRun:
    """Play the first tasks of the run as its first step would, and judge them."""
    chosen = TaskStream(run.tasks.tasks, tasks, run.config.seed).next()
    started = time.perf_counter()
    episodes, counterfactuals = collect_episodes(run, chosen, repeats)
    run.engine.clear()
    played = [episode for episode in episodes if episode.error is None]
    metrics = assign_credit(run, played, counterfactuals) if played else {}
    known = time.perf_counter()
    gaps = compare(run, played)
    compared = time.perf_counter()
    # A backward pass costs about two forward ones.
    seconds = known - started + 3 * (compared - known) * run.algorithm.epochs
    larger = run.config.tasks_per_step * run.config.episodes_per_task / len(episodes)
    reward = reward_of(run.collector.env)
    golds = golden(run, chosen) if played and (reward is None or reward.compares) else []
    probes = [*broken(run, chosen, golds), *one_by_one(run, golds)] if played else []
    run.engine.clear()
    trained = frozenset(policy for policy, learner in run.learners.items() if not learner.frozen)
    in_time = {
        policy for step in range(run.config.steps) for policy in run.algorithm.trained_policies(run.learners, step)
    }
    return DryRun(
        episodes,
        list(run.players()),
        trained,
        metrics,
        run.algorithm.group_sizes(played),
        gaps,
        dialogue(run, played),
        larger * sum(len(turn.response_ids) for episode in episodes for turn in episode.turns),
        larger * seconds,
        golds,
        probes,
        reward is not None,
        not run.credit.uses_team_reward,
        echoes(played, lambda turn: read_by(run, turn)),
        verdicts(played, lambda turn: read_by(run, turn)),
        sorted(trained - in_time),
    )


def compare(run: Run, played: Sequence[Episode]) -> dict[str, Gap]:
    """The learner's log-probs of what was sampled beside the sampler's own, for each policy."""
    gaps = {}
    for policy, batch in make_batches(played, require_advantages=False).items():
        off = (run.learners[policy].logprobs(batch) - batch.logprobs)[batch.mask].abs()
        gaps[policy] = Gap(float(off.mean()), float(off.max()))
    return gaps


def dialogue(run: Run, played: Sequence[Episode]) -> dict[str, tuple[str, str, str]]:
    """For each role of the first episode what it read and said, control tokens and all, and how it stopped."""
    shown: dict[str, tuple[str, str, str]] = {}
    for turn in played[0].turns if played else ():
        said = run.collector.chats[turn.policy].tokenizer.decode(list(turn.response_ids))
        shown.setdefault(turn.role, (read_by(run, turn), str(said), turn.stop))
    return shown


def read_by(run: Run, turn: Turn) -> str:
    """All that stood before a turn."""
    return str(run.collector.chats[turn.policy].tokenizer.decode(list(turn.prompt_ids)))
