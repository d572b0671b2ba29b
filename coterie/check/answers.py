"""Findings from reference and broken answers: problems of the workflow's parser and of the grader."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from coterie.check.record import DryRun, Finding, ReferenceProbe, brief
from coterie.types import is_correct

Found = Iterator[Finding]
Level = Literal["error", "warning"]


def hidden_references(dry: DryRun) -> Found:
    """Reference answers with a reward below 1: the workflow hides them, or the grader rejects them."""
    missed = [probe for probe in dry.references if not is_correct(probe.episode.reward)]
    if not missed:
        return
    blind = dry.graded and len(missed) == len(dry.references) and all(not _tells(dry, probe) for probe in missed)
    level, few = _level(dry, blind)
    first = missed[0]
    count = f"of {len(missed)} of {len(dry.references)} tasks"
    if first.direct_reward > first.episode.reward:
        passed = f"it returned {brief(first.episode.answer)} for {brief(first.text)}"
        hint = "return the part that `reward` reads"
        reward = f"gets {first.direct_reward:g} when graded directly and {first.episode.reward:g} through the workflow"
        hides = "the workflow hides answers from the grader"
        yield Finding(level, f"{hides}: the reference {count} {reward}; {passed}; {hint}{few}")
    else:
        hint = "check `reward` and the answers in the data"
        seen = f"the grader got {brief(first.episode.answer)}"
        yield Finding(level, f"the reference answer {count} gets {first.episode.reward:g}, not 1: {seen}; {hint}{few}")


def _level(dry: DryRun, everywhere: bool) -> tuple[Level, str]:
    """An error if it holds for all of several tasks; with a single task, which may be unusual, a warning."""
    single = everywhere and len(dry.references) == 1
    return (
        "error" if everywhere and not single else "warning",
        "; 1 task is too few to be sure, see --tasks" if single else "",
    )


def _tells(dry: DryRun, probe: ReferenceProbe) -> bool:
    """Whether the reference answer gets a higher reward than every broken one."""
    broken = [p.episode.reward for p in dry.probes if p.whole and p.episode.task.id == probe.episode.task.id]
    return probe.episode.reward > max(broken, default=0.0)


def rewarded_broken_answers(dry: DryRun) -> Found:
    """Broken answers with as much reward as the reference."""
    right = {probe.episode.task.id: probe.episode.reward for probe in dry.references if probe.episode.reward > 0}
    if not dry.graded:
        return
    for kind in dict.fromkeys(probe.kind for probe in dry.probes if probe.whole):
        tried = [p.episode for p in dry.probes if p.kind == kind and p.episode.task.id in right]
        paid = [episode for episode in tried if episode.error is None and episode.reward >= right[episode.task.id]]
        if paid:
            level, few = _level(dry, len(paid) == len(tried))
            reward = f"gets as much reward as the reference in {len(paid)} of {len(tried)} tasks ({paid[0].reward:g})"
            yield Finding(level, f"{kind} {reward}: the reward cannot tell them apart; choose a stricter `reward`{few}")


def constant_roles(dry: DryRun) -> Found:
    """Roles whose reward is the same for every reply, where some reference answer has a reward."""
    if not any(probe.episode.reward > 0 for probe in dry.references):
        return
    rewards = dry.by_role(dry.tried)
    still = [role for role in dry.learning if len(set(rewards[role])) == 1]
    level, few = _level(dry, len(still) == len(dry.learning))
    for role in still:
        hint = "set turn.reward depending on its replies, or use credit: team"
        yield Finding(
            level, f"the reward of {role} is {rewards[role][0]:g} for every reply: nothing to learn from; {hint}{few}"
        )


def crashes(dry: DryRun) -> Found:
    """Answers on which the workflow or the grader raises: failed episodes are not trained on."""
    tried = [("the reference", probe.episode) for probe in dry.references] + [(p.kind, p.episode) for p in dry.probes]
    failed: dict[str, str] = {}  # the first of each kind of error
    for kind, episode in tried:
        if episode.error is not None:
            failed.setdefault(episode.error.strip().rpartition("\n")[2], kind)
    for error, kind in failed.items():
        hint = "failed episodes are not trained on; count unreadable answers as wrong instead"
        yield Finding("warning", f"{kind} makes the episode fail ({brief(error, 100)}): {hint}")
