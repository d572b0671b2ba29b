"""What gold and broken answers say of the workflow's parser and of the grader."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from coterie.check.record import DryRun, Finding, Gold, brief
from coterie.types import is_correct

Found = Iterator[Finding]
Level = Literal["error", "warning"]


def unseen(dry: DryRun) -> Found:
    """Reference answers that do not earn 1: the workflow hides them, or the grader does not know them."""
    missed = [gold for gold in dry.golds if not is_correct(gold.episode.reward)]
    if not missed:
        return
    blind = dry.graded and len(missed) == len(dry.golds) and all(not _tells(dry, gold) for gold in missed)
    level, few = _level(dry, blind)
    first = missed[0]
    count = f"of {len(missed)} of {len(dry.golds)} tasks"
    if first.alone > first.episode.reward:
        passed = f"it passed on {brief(first.episode.answer)} for {brief(first.text)}"
        mend = "let it keep the part that `reward` reads"
        worth = f"earns {first.alone:g} by itself and {first.episode.reward:g} through the workflow"
        hides = "the workflow hides answers from the grader"
        yield Finding(level, f"{hides}: the reference {count} {worth}; {passed}; {mend}{few}")
    else:
        mend = "look at `reward`, and at what the data has as its answers"
        seen = f"the grader was given {brief(first.episode.answer)}"
        yield Finding(level, f"the reference answer {count} earns {first.episode.reward:g}, not 1: {seen}; {mend}{few}")


def _level(dry: DryRun, everywhere: bool) -> tuple[Level, str]:
    """An error if it holds for all tasks and these are several; of a single one, which may be odd, it says so."""
    alone = everywhere and len(dry.golds) == 1
    return (
        "error" if everywhere and not alone else "warning",
        "; 1 task is too few to tell, see --tasks" if alone else "",
    )


def _tells(dry: DryRun, gold: Gold) -> bool:
    """Whether a right answer earns more than every broken one."""
    broken = [p.episode.reward for p in dry.probes if p.whole and p.episode.task.id == gold.episode.task.id]
    return gold.episode.reward > max(broken, default=0.0)


def fooled(dry: DryRun) -> Found:
    """Broken answers that earn as much as the right one."""
    right = {gold.episode.task.id: gold.episode.reward for gold in dry.golds if gold.episode.reward > 0}
    if not dry.graded:
        return
    for kind in dict.fromkeys(probe.kind for probe in dry.probes if probe.whole):
        tried = [p.episode for p in dry.probes if p.kind == kind and p.episode.task.id in right]
        paid = [episode for episode in tried if episode.error is None and episode.reward >= right[episode.task.id]]
        if paid:
            level, few = _level(dry, len(paid) == len(tried))
            worth = f"earns as much as the right answer in {len(paid)} of {len(tried)} tasks ({paid[0].reward:g})"
            yield Finding(level, f"{kind} {worth}: the reward cannot tell them apart; choose a stricter `reward`{few}")


def stuck(dry: DryRun) -> Found:
    """Roles that earn the same whatever anyone says. Where no right answer earns anything, `unseen` has said so."""
    if not any(gold.episode.reward > 0 for gold in dry.golds):
        return
    rewards = dry.by_role(dry.tried)
    still = [role for role in dry.learning if len(set(rewards[role])) == 1]
    level, few = _level(dry, len(still) == len(dry.learning))
    for role in still:
        given = "give its turns a reward that depends on them (turn.reward), or use credit: team"
        yield Finding(
            level, f"whatever is said, {role} earns {rewards[role][0]:g}: it has nothing to learn from; {given}{few}"
        )


def crashes(dry: DryRun) -> Found:
    """Answers on which the workflow or the grader fails, so that nobody learns that they are bad."""
    tried = [("the reference", gold.episode) for gold in dry.golds] + [(p.kind, p.episode) for p in dry.probes]
    failed: dict[str, str] = {}  # the first of each kind of error
    for kind, episode in tried:
        if episode.error is not None:
            failed.setdefault(episode.error.strip().rpartition("\n")[2], kind)
    for error, kind in failed.items():
        mend = "such episodes are left out of training; count what cannot be read as wrong instead"
        yield Finding("warning", f"{kind} makes the episode fail ({brief(error, 100)}): {mend}")
