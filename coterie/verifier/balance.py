"""Balances labelled answers: per question k right and k wrong ones, so that the question alone predicts nothing.

A question with too few right or wrong answers is topped up: with more samples, and with wrong answers made from right
ones, which the grader labels again. A question that still has only right or only wrong answers is dropped.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import nan
from typing import TYPE_CHECKING

from coterie.seeds import stable_hash
from coterie.types import is_correct
from coterie.verifier.answers import Answer
from coterie.verifier.perturb import perturb

if TYPE_CHECKING:
    from coterie.models.chat import Chat

Grade = Callable[[str, str], Awaitable[float | None]]  # (id of the task, text of an answer) → reward; None: it failed
ATTEMPTS = 4  # perturbations of an answer until one is new and wrong


@dataclass
class Question:
    """The distinct answers to one question, in the order in which they came."""

    task: str  # the first one that asks it; generated tasks may ask a question twice
    answers: dict[str, Answer] = field(default_factory=dict)  # by text

    def add(self, answer: Answer) -> None:
        self.answers.setdefault(answer.text, answer)

    @property
    def right(self) -> list[Answer]:
        return [answer for answer in self.answers.values() if answer.right]

    @property
    def wrong(self) -> list[Answer]:
        return [answer for answer in self.answers.values() if not answer.right]

    def pairs(self, most: int) -> int:
        """How many right answers, and as many wrong ones, it has; at most `most`."""
        return min(most, len(self.right), len(self.wrong))

    def outcome(self, k: int) -> str:
        """Whether it is kept or dropped, as a row of the summary table."""
        if self.pairs(k) == k:
            return f"kept with {k} of each"
        if self.pairs(k):
            return f"kept with fewer than {k} of each"
        return "dropped: no wrong answer" if self.right else "dropped: no right answer"


def group(answers: Iterable[Answer]) -> dict[str, Question]:
    """The questions by their text. An answer that occurs twice counts once."""
    questions: dict[str, Question] = {}
    for answer in answers:
        questions.setdefault(answer.question, Question(answer.task)).add(answer)
    return questions


def short_of(questions: Mapping[str, Question], k: int) -> list[Question]:
    """The questions with fewer than k right or k wrong answers."""
    return [question for question in questions.values() if question.pairs(k) < k]


def add_perturbed(questions: Mapping[str, Question], k: int, grade: Grade, chats: Mapping[str, Chat]) -> None:
    """Add wrong answers to questions with fewer wrong than right ones, until they have k or as many as right ones."""
    for attempt in range(ATTEMPTS):
        candidates = [new for question in questions.values() for new in _candidates(question, k, attempt)]
        for answer, reward in zip(candidates, asyncio.run(_grades(candidates, grade)), strict=True):
            if reward is not None and not is_correct(reward):
                ids = chats[answer.policy].tokenizer(answer.text, add_special_tokens=False)["input_ids"]
                questions[answer.question].add(replace(answer, ids=tuple(ids)))


def _candidates(question: Question, k: int, attempt: int) -> Iterator[Answer]:
    """One perturbed answer for each that is missing, from different right answers where there are enough."""
    right = question.right
    for number in range(min(k, len(right)) - len(question.wrong)):
        origin = right[(attempt + number) % len(right)]
        text = perturb(origin.text, random.Random(stable_hash(question.task, attempt, number)))
        if text is not None and text not in question.answers:
            yield replace(origin, text=text, label=0.0, logprob=nan, perturbed=True)


async def _grades(answers: Sequence[Answer], grade: Grade) -> list[float | None]:
    return await asyncio.gather(*(grade(answer.task, answer.text) for answer in answers))


def choose(questions: Mapping[str, Question], k: int) -> list[Answer]:
    """As many right as wrong answers per question, at most k of each, drawn at random; perturbed ones come last."""
    chosen = []
    for question in questions.values():
        for answers in (question.right, question.wrong):
            random.Random(stable_hash("balance", question.task)).shuffle(answers)
            answers.sort(key=lambda answer: answer.perturbed)
            chosen += answers[: question.pairs(k)]
    return chosen


@dataclass(frozen=True)
class Balance:
    """What balancing did, for its table and its plot."""

    read: list[Answer]
    sampled: list[Answer]  # more samples
    kept: list[Answer]
    outcomes: Counter[str]  # questions by `Question.outcome`

    def rows(self) -> list[dict[str, str | int]]:
        """The counts of questions, then of answers."""
        questions: list[dict[str, str | int]] = [
            {"what": f"questions {outcome}", "count": count} for outcome, count in sorted(self.outcomes.items())
        ]
        counts = {
            "answers read": len(self.read),
            "answers sampled to top up": len(self.sampled),
            "right answers kept": sum(answer.right for answer in self.kept),
            "wrong answers kept": sum(not answer.right for answer in self.kept),
            "of these perturbed": sum(answer.perturbed for answer in self.kept),
        }
        return questions + [{"what": what, "count": count} for what, count in counts.items()]
