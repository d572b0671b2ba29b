"""The dry run: plays a few episodes of the first step without an update, then the probes."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

from coterie.check.echo_check import echoes, verdicts
from coterie.check.probes import broken_answer_probes, reference_probes, single_role_probes
from coterie.check.record import DryRun, Gap
from coterie.envs.base import reward_of
from coterie.learners.batch import make_batches
from coterie.training.loop import Run, assign_credit, collect_episodes
from coterie.training.tasks import TaskStream
from coterie.types import Episode, Turn

NO_TOKENS = "(played by text alone: the prompt has no tokens)"


def dry_run(run: Run, tasks: int, repeats: int) -> DryRun:
    """Play the first tasks of the run and assign credit, as its first step would; then probe parser and grader."""
    chosen = TaskStream(run.tasks.tasks, tasks, run.config.seed, run.config.shuffle).at_step(0)
    started = time.perf_counter()
    episodes, counterfactuals = collect_episodes(run, replace(run.plan(run.step), tasks=chosen), repeats)
    run.engine.clear()
    played = [episode for episode in episodes if episode.error is None]
    metrics = assign_credit(run, played, counterfactuals) if played else {}
    known = time.perf_counter()
    gaps = logprob_gaps(run, played)
    compared = time.perf_counter()
    # A backward pass costs about two forward passes.
    seconds = known - started + 3 * (compared - known) * run.algorithm.epochs
    larger = run.config.tasks_per_step * run.config.episodes_per_task / len(episodes)
    reward = reward_of(run.collector.env)
    references = reference_probes(run, chosen) if played and (reward is None or reward.compares) else []
    probes = [*broken_answer_probes(run, chosen, references), *single_role_probes(run, references)] if played else []
    run.engine.clear()
    trained = frozenset(policy for policy, learner in run.learners.items() if not learner.frozen)
    steps = range(run.config.steps)
    in_time = {policy for step in steps for policy in run.algorithm.trained_policies(run.learners, step)}
    return DryRun(
        episodes=episodes,
        roles=list(run.players()),
        trained=trained,
        credit=metrics,
        group_sizes=run.algorithm.group_sizes(played),
        gaps=gaps,
        dialogue=dialogue(run, played),
        tokens_per_step=larger * sum(len(turn.response_ids) for episode in episodes for turn in episode.turns),
        seconds_per_step=larger * seconds,
        references=references,
        probes=probes,
        graded=reward is not None,
        rule=run.credit,
        echoes=echoes(played, lambda turn: prompt_of(run, turn)),
        verdicts=verdicts(played, lambda turn: prompt_of(run, turn)),
        waiting=sorted(trained - in_time),
    )


def logprob_gaps(run: Run, played: Sequence[Episode]) -> dict[str, Gap]:
    """By policy, the log-prob gap between learner and sampler on the sampled tokens."""
    gaps = {}
    for policy, batch in make_batches(played, require_advantages=False).items():
        off = (run.learners[policy].logprobs(batch) - batch.logprobs)[batch.mask].abs()
        gaps[policy] = Gap(float(off.mean()), float(off.max()))
    return gaps


def dialogue(run: Run, played: Sequence[Episode]) -> dict[str, tuple[str, str, str]]:
    """For each role of the first episode: its prompt and reply with control tokens, and the stop reason."""
    shown: dict[str, tuple[str, str, str]] = {}
    for turn in played[0].turns if played else ():
        if turn.policy not in run.collector.chats:
            shown.setdefault(turn.role, (NO_TOKENS, turn.text, turn.stop))
            continue
        reply = run.collector.chats[turn.policy].tokenizer.decode(list(turn.response_ids))
        shown.setdefault(turn.role, (prompt_of(run, turn), str(reply), turn.stop))
    return shown


def prompt_of(run: Run, turn: Turn) -> str:
    """The prompt of a turn as text."""
    if turn.policy not in run.collector.chats:
        return NO_TOKENS
    return str(run.collector.chats[turn.policy].tokenizer.decode(list(turn.prompt_ids)))
