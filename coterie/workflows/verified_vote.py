"""Solver and verifier: many solutions, each graded with a digit; the answer with the largest sum of digits wins."""

from __future__ import annotations

import asyncio
import re
from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

from coterie.prompts import chat_messages, check, fill
from coterie.statistics import auc
from coterie.types import Grade, Message, Metrics, Outcome, Task, Team, Turn, is_correct
from coterie.workflows.majority import ballot, majority

SCALE = "Reply with one digit from 0 (certainly wrong) to 9 (certainly right)."
REVIEW = (
    "Question:\n{question}\n\nProposed solution:\n{solution}\n\n"
    f"Check the solution. How likely is its final answer to be correct? {SCALE}"
)
SELF_REVIEW = f"How likely is your final answer to be correct? {SCALE}"
DIGIT = re.compile(r"[0-9]")


@dataclass(frozen=True)
class VerifiedVote:
    """The solver answers `answers` times on its own, the verifier reads each solution and gives it `grades` digits.

    A solution earns its grade by the answer key. A digit d earns 1 − (d/9 − y)², y = 1 where the solution is right:
    the Brier score, which is largest in expectation for the true probability. A reply without a digit earns 0.
    """

    judges_turns: ClassVar[bool] = True

    answers: int = 8  # solutions per task
    grades: int = 1  # digits per solution, sampled from one prompt
    conversation: bool = False  # the verifier continues the solver's conversation instead of a fresh one
    prompt: str = "{question}"  # the solver's prompt
    review: str | None = None  # the verifier's prompt; null: a request for a digit

    def __post_init__(self) -> None:
        check(self.prompt, ["question"], "prompt")
        check(self.request, [] if self.conversation else ["question", "solution"], "review")
        for option in ("answers", "grades"):
            if getattr(self, option) < 1:
                raise ValueError(f"{option}: at least 1, not {getattr(self, option)}")

    @property
    def roles(self) -> tuple[str, ...]:
        return ("solver", "verifier")

    @property
    def request(self) -> str:
        """What the verifier is asked."""
        if self.review is not None:
            return self.review
        return SELF_REVIEW if self.conversation else REVIEW

    async def run(self, task: Task, team: Team, world: Any) -> Outcome:
        asked = chat_messages(fill(self.prompt, {"question": task.prompt}))
        solutions = await asyncio.gather(*(team.solver.say(asked) for _ in range(self.answers)))
        reviews = [self._review(task, asked, solution.text) for solution in solutions for _ in range(self.grades)]
        flat = await asyncio.gather(*(team.verifier.say(review) for review in reviews))
        digits = [flat[i : i + self.grades] for i in range(0, len(flat), self.grades)]
        texts = [solution.text for solution in solutions]
        return Outcome(elected(texts, [score(turns) for turns in digits]), judge=partial(judge, solutions, digits))

    def _review(self, task: Task, asked: list[Message], solution: str) -> list[Message]:
        if self.conversation:
            return [*asked, Message(role="assistant", content=solution), *chat_messages(self.request)]
        return chat_messages(fill(self.request, {"question": task.prompt, "solution": solution}))


def digit(turn: Turn) -> int | None:
    """The first digit of a reply."""
    found = DIGIT.search(turn.text)
    return int(found[0]) if found else None


def score(turns: Sequence[Turn]) -> float:
    """A solution's mean digit; a reply without one counts as 0."""
    return sum(digit(turn) or 0 for turn in turns) / len(turns)


def elected(texts: Sequence[str], scores: Sequence[float]) -> str:
    """The best solution of the answer with the largest sum of scores; ties go to more votes, then to the earliest."""
    sums: defaultdict[Hashable, float] = defaultdict(float)
    votes: defaultdict[Hashable, int] = defaultdict(int)
    for text, value in zip(texts, scores, strict=True):
        sums[ballot(text)] += value
        votes[ballot(text)] += 1
    best = max(sums, key=lambda answer: (sums[answer], votes[answer]))
    return max(zip(texts, scores, strict=True), key=lambda pair: (ballot(pair[0]) == best, pair[1]))[0]


async def judge(solutions: Sequence[Turn], digits: Sequence[Sequence[Turn]], grade: Grade) -> Metrics:
    """Give every turn its reward, and say how well solver and verifier did on their own."""
    right = []
    for solution, turns in zip(solutions, digits, strict=True):
        solution.reward = await grade(solution.text)
        right.append(is_correct(solution.reward))
        for turn in turns:
            turn.reward = brier(digit(turn), right[-1])
    unreadable = [digit(turn) is None for turns in digits for turn in turns]
    metrics = {
        "solver_right": sum(right) / len(right),
        "any_right": float(any(right)),
        "majority_right": float(is_correct(await grade(majority([solution.text for solution in solutions])))),
        "unreadable": sum(unreadable) / len(unreadable),
    }
    within = auc([score(turns) for turns in digits], right)
    return metrics if within is None else metrics | {"auc_within_task": within}


def brier(said: int | None, right: bool) -> float:
    """1 − (d/9 − y)²; 0 for a reply without a digit, as for the worst one."""
    return 0.0 if said is None else 1.0 - (said / 9 - right) ** 2
