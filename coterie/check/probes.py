"""Puts the reference answer into everyone's mouth, then broken ones: does the grader see the difference?

Nothing is sampled: the workflow runs as ever, parses what it is given and passes it on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from coterie.check.record import Gold, Probe
from coterie.training.loop import Run
from coterie.types import Episode, Fork, Task, is_correct

# The ways in which prompts ask for an answer. A program may be the answer, or compute it.
SPELLINGS = ("{}", "<answer>{}</answer>", "\\boxed{{{}}}", "```python\n{}\n```", "```python\nprint({!r})\n```")
EMPTY, MALFORMED = "", "<answer>\\boxed{```python\n(((<tool_call>{\0"
VERDICTS = ("Verdict: correct", "Verdict: incorrect")
TURNS = 64  # that a role is given words for; hardly a workflow asks so often
TASKS = 2  # on which roles are broken one by one


@dataclass(frozen=True)
class Aloud:
    """A workflow that asks nobody and answers this."""

    text: str
    roles: tuple[str, ...] = ()

    async def run(self, task: Task, team: Any, world: Any) -> str:
        return self.text


def reference(task: Task) -> str | None:
    """The answer as a text; of several the first. None where there is none that someone could say."""
    answer = task.answer[0] if isinstance(task.answer, list | tuple) and task.answer else task.answer
    return str(answer) if isinstance(answer, str | int | float) else None


def golden(run: Run, tasks: Sequence[Task]) -> list[Gold]:
    """Each task's reference answer, in one spelling after the other until it counts in full."""
    answers = {task.id: (task, answer) for task in tasks if (answer := reference(task)) is not None}
    best: dict[str, tuple[str, Episode]] = {}
    for spelling in SPELLINGS:
        open_ = [pair for name, pair in answers.items() if name not in best or best[name][1].reward < 1]
        texts = [spelling.format(answer) for _, answer in open_]
        said = [everyone(run, text) for text in texts]
        for text, episode in zip(texts, forked(run, [task for task, _ in open_], said, "gold"), strict=True):
            name = episode.task.id
            if name not in best or episode.reward > best[name][1].reward:
                best[name] = (text, episode)
    return [Gold(text, episode, alone(run, episode, answers[name][1])) for name, (text, episode) in best.items()]


def alone(run: Run, through: Episode, answer: str) -> float:
    """The most that the grader gives for a reference when no workflow stands between."""
    if is_correct(through.reward):
        return through.reward
    graded: list[Episode] = []
    for spelling in SPELLINGS:
        collector = replace(run.collector, workflow=Aloud(spelling.format(answer)))
        graded += collector.collect([through.task], 1, {}, 0)
    return max(episode.reward for episode in graded)


def broken(run: Run, tasks: Sequence[Task], golds: Sequence[Gold]) -> list[Probe]:
    """Everyone is wrong, silent or garbled."""
    wrong = [(gold, other) for gold in golds if (other := another(gold, golds)) is not None]
    found = probed(run, "another task's answer", [gold.episode.task for gold, _ in wrong], [o for _, o in wrong])
    for kind, text in {"nothing": EMPTY, "malformed text": MALFORMED}.items():
        found += probed(run, kind, tasks, [text] * len(tasks))
    return found


def one_by_one(run: Run, golds: Sequence[Gold]) -> list[Probe]:
    """One role at a time is silent, or gives a verdict, while the others say the reference."""
    found: list[Probe] = []
    some = golds[:TASKS]
    for role in run.players() if some else ():
        for text in (EMPTY, *VERDICTS):
            kind = f"{role} says {text or 'nothing'}, the others the reference"
            given = [everyone(run, gold.text) | one(role, text) for gold in some]
            episodes = forked(run, [gold.episode.task for gold in some], given, kind)
            found += [Probe(kind, episode, whole=False) for episode in episodes]
    return found


def another(gold: Gold, golds: Sequence[Gold]) -> str | None:
    """What is right for some other task, and not for this one."""
    return next((other.text for other in golds if other.text != gold.text), None)


def probed(run: Run, kind: str, tasks: Sequence[Task], texts: Sequence[str]) -> list[Probe]:
    given = [everyone(run, text) for text in texts]
    return [Probe(kind, episode, whole=True) for episode in forked(run, tasks, given, kind)]


Given = dict[tuple[str, int], str]


def everyone(run: Run, text: str) -> Given:
    return {place: said for role in run.players() for place, said in one(role, text).items()}


def one(role: str, text: str) -> Given:
    return {(role, nth): text for nth in range(TURNS)}


def forked(run: Run, tasks: Sequence[Task], given: Sequence[Given], purpose: str) -> list[Episode]:
    """Each task played with words that are given."""
    origins = [Episode(f"{task.id}/check", task, 0) for task in tasks]
    forks = [Fork(origin, purpose, said) for origin, said in zip(origins, given, strict=True)]
    return run.collector.fork(forks, run.players())
