"""Probes: plays tasks with fixed replies (reference or broken answers) to test parser and grader.

Nothing is sampled; the workflow runs as usual on the fixed replies.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from coterie.check.record import Probe, ReferenceProbe
from coterie.training.loop import Run
from coterie.types import Episode, Fork, Task, is_correct

# Formats in which prompts ask for an answer. A program may be the answer, or compute it.
FORMATS = ("{}", "<answer>{}</answer>", "\\boxed{{{}}}", "```python\n{}\n```", "```python\nprint({!r})\n```")
EMPTY, MALFORMED = "", "<answer>\\boxed{```python\n(((<tool_call>{\0"
VERDICTS = ("Verdict: correct", "Verdict: incorrect")
TURNS = 64  # fixed turns per role; more than any workflow asks for
TASKS = 2  # for probes of single roles


@dataclass(frozen=True)
class FixedAnswer:
    """A workflow without turns that returns this answer."""

    text: str
    roles: tuple[str, ...] = ()

    async def run(self, task: Task, team: Any, world: Any) -> str:
        return self.text


def reference_text(task: Task) -> str | None:
    """The reference answer as text, the first of several; None if it is not text or a number, or if the text is a JSON
    object: the tests of a program, which say what it must do and not what it is."""
    answer = task.answer[0] if isinstance(task.answer, list | tuple) and task.answer else task.answer
    if isinstance(answer, str) and _is_json_object(answer):
        return None
    return str(answer) if isinstance(answer, str | int | float) else None


def _is_json_object(text: str) -> bool:
    try:
        return text.lstrip().startswith("{") and isinstance(json.loads(text), dict)
    except ValueError:
        return False


def reference_probes(run: Run, tasks: Sequence[Task]) -> list[ReferenceProbe]:
    """Play each task with its reference answer, in one format after the other until the reward is 1."""
    answers = {task.id: (task, answer) for task in tasks if (answer := reference_text(task)) is not None}
    best: dict[str, tuple[str, Episode]] = {}
    for format_ in FORMATS:
        open_ = [pair for name, pair in answers.items() if name not in best or best[name][1].reward < 1]
        texts = [format_.format(answer) for _, answer in open_]
        fixed = [all_roles(run, text) for text in texts]
        for text, episode in zip(texts, played(run, [task for task, _ in open_], fixed, "gold"), strict=True):
            name = episode.task.id
            if name not in best or episode.reward > best[name][1].reward:
                best[name] = (text, episode)
    return [
        ReferenceProbe(text, episode, graded_directly(run, episode, answers[name][1]))
        for name, (text, episode) in best.items()
    ]


def graded_directly(run: Run, episode: Episode, answer: str) -> float:
    """The highest reward of a reference answer when graded directly, without the workflow."""
    if is_correct(episode.reward):
        return episode.reward
    graded: list[Episode] = []
    for format_ in FORMATS:
        collector = replace(run.collector, workflow=FixedAnswer(format_.format(answer)))
        graded += collector.collect([episode.task], 1, {}, 0)
    return max(episode.reward for episode in graded)


def broken_answer_probes(run: Run, tasks: Sequence[Task], references: Sequence[ReferenceProbe]) -> list[Probe]:
    """All roles give another task's answer, an empty reply or malformed text."""
    wrong = [(probe, other) for probe in references if (other := other_answer(probe, references)) is not None]
    found = probed(run, "another task's answer", [probe.episode.task for probe, _ in wrong], [o for _, o in wrong])
    for kind, text in {"an empty reply": EMPTY, "malformed text": MALFORMED}.items():
        found += probed(run, kind, tasks, [text] * len(tasks))
    return found


def single_role_probes(run: Run, references: Sequence[ReferenceProbe]) -> list[Probe]:
    """One role gives an empty reply or a verdict while the others give the reference answer."""
    found: list[Probe] = []
    some = references[:TASKS]
    for role in run.players() if some else ():
        for text in (EMPTY, *VERDICTS):
            kind = f"{role} replies {text or 'nothing'}, the others the reference"
            fixed = [all_roles(run, probe.text) | fixed_replies(role, text) for probe in some]
            episodes = played(run, [probe.episode.task for probe in some], fixed, kind)
            found += [Probe(kind, episode, whole=False) for episode in episodes]
    return found


def other_answer(probe: ReferenceProbe, references: Sequence[ReferenceProbe]) -> str | None:
    """The answer to another task that is not this one's."""
    return next((other.text for other in references if other.text != probe.text), None)


def probed(run: Run, kind: str, tasks: Sequence[Task], texts: Sequence[str]) -> list[Probe]:
    fixed = [all_roles(run, text) for text in texts]
    return [Probe(kind, episode, whole=True) for episode in played(run, tasks, fixed, kind)]


FixedReplies = dict[tuple[str, int], str]


def all_roles(run: Run, text: str) -> FixedReplies:
    return {place: reply for role in run.players() for place, reply in fixed_replies(role, text).items()}


def fixed_replies(role: str, text: str) -> FixedReplies:
    return {(role, nth): text for nth in range(TURNS)}


def played(run: Run, tasks: Sequence[Task], fixed: Sequence[FixedReplies], purpose: str) -> list[Episode]:
    """Play each task with fixed replies."""
    origins = [Episode(f"{task.id}/check", task, 0) for task in tasks]
    forks = [Fork(origin, purpose, replies) for origin, replies in zip(origins, fixed, strict=True)]
    return run.collector.fork(forks, run.players())
