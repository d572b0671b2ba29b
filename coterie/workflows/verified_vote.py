"""Verifier-weighted vote: a verifier scores each of many solutions; the answer with the largest sum of scores wins.

The verifier is a role that writes a digit, or a trained reward model (`coterie verifier train`), which writes nothing.
"""

from __future__ import annotations

import asyncio
import re
from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

from coterie.prompts import Examples, chat_messages, check, check_counts, fill
from coterie.rewards.verifier import TooLong, VerifierSource, open_source, scores_of
from coterie.statistics import auc, mean
from coterie.types import Grade, Message, Metrics, Outcome, Task, Team, Turn, is_correct
from coterie.workflows.vote import ballot, majority

SCALE = "Reply with one digit from 0 (certainly wrong) to 9 (certainly right)."
REVIEW = (
    "Question:\n{question}\n\nProposed solution:\n{solution}\n\n"
    f"Check the solution. How likely is its final answer to be correct? {SCALE}"
)
SELF_REVIEW = f"How likely is your final answer to be correct? {SCALE}"
READ = "verifier_tokens"  # metric: tokens that the reward model reads, counted by the solver's tokenizer
UNREAD = "verifier_too_long"  # metric: share of solutions that are longer than the reward model's context
DIGIT = re.compile(r"[0-9]")
SCORE = re.compile(r"score\W{0,4}([0-9])\b", re.IGNORECASE)


@dataclass(frozen=True)
class VerifiedVote:
    """The solver samples `answers` solutions; the verifier scores each with `grades` digits, or with its probability.

    A solution is rewarded by the config's reward. A digit d gets 1 − (d/9 − y)², with y = 1 if the solution is right:
    the Brier score, a proper scoring rule, so the true probability maximizes its expectation. No digit gets 0.
    """

    judges_turns: ClassVar[bool] = True

    answers: int = 8  # solutions per task
    grades: int = 1  # digits per solution, sampled from one prompt
    conversation: bool = False  # the verifier continues the solver's conversation instead of a fresh one
    prompt: str = "{question}"  # the solver's prompt
    system: str | None = None  # the solver's system message; null: none
    examples: Examples = ()  # few-shot for the solver: [user message, reply] pairs that come before the prompt
    review: str | None = None  # the verifier's prompt; null: a request for a digit
    # {run: FOLDER} or {url: ADDRESS}, as of the reward `verifier`: scores the solutions; null: the role `verifier` does
    verifier: VerifierSource | None = None

    def __post_init__(self) -> None:
        check(self.prompt, ["question"], "prompt")
        if self.verifier is not None and (self.grades > 1 or self.conversation or self.review is not None):
            raise ValueError("verifier: grades, conversation and review have no effect with it; it needs no prompt")
        check(self.request, [] if self.conversation else ["question", "solution"], "review")
        check_counts(self, "answers", "grades")

    @property
    def roles(self) -> tuple[str, ...]:
        return ("solver", "verifier") if self.verifier is None else ("solver",)

    @property
    def request(self) -> str:
        """The verifier's prompt template."""
        if self.review is not None:
            return self.review
        return SELF_REVIEW if self.conversation else REVIEW

    def open_models(self, device: str, deadline: float) -> dict[str, str]:
        """Load the reward model, or connect to it."""
        return {} if self.verifier is None else {"workflow": open_source(self.verifier, device, deadline)}

    async def run(self, task: Task, team: Team, world: Any) -> Outcome:
        messages = chat_messages(fill(self.prompt, {"question": task.prompt}), self.system, self.examples)
        solutions = await asyncio.gather(*(team.solver.say(messages) for _ in range(self.answers)))
        texts = [solution.text for solution in solutions]
        if self.verifier is not None:
            found = await asyncio.gather(*(score_or_none(self.verifier, task.prompt, text) for text in texts))
            scores = [value or 0.0 for value in found]
            metrics = _model_metrics(solutions, found)
            return Outcome(elected(texts, scores), metrics, judge=partial(judge, solutions, scores, ()))
        reviews = [self._review(task, messages, text) for text in texts for _ in range(self.grades)]
        flat = await asyncio.gather(*(team.verifier.say(review) for review in reviews))
        digits = [flat[i : i + self.grades] for i in range(0, len(flat), self.grades)]
        scores = [score(turns) for turns in digits]
        return Outcome(elected(texts, scores), judge=partial(judge, solutions, scores, digits))

    def _review(self, task: Task, messages: list[Message], solution: str) -> list[Message]:
        if self.conversation:
            return [*messages, Message(role="assistant", content=solution), *chat_messages(self.request)]
        return chat_messages(fill(self.request, {"question": task.prompt, "solution": solution}))


async def score_or_none(source: VerifierSource, question: str, solution: str) -> float | None:
    """A reward model's score; None for a solution that is longer than its context."""
    try:
        return await scores_of(source).score(question, solution)
    except TooLong:
        return None


def _model_metrics(solutions: Sequence[Turn], scores: Sequence[float | None]) -> Metrics:
    read = sum(sum(turn.tokens) for turn, value in zip(solutions, scores, strict=True) if value is not None)
    return {READ: float(read), UNREAD: mean([value is None for value in scores])}


def digit(turn: Turn) -> int | None:
    """The digit of a reply: after its last `Score:`, so that a check may come first, else the first digit in it."""
    found = SCORE.findall(turn.text) or DIGIT.findall(turn.text)[:1]
    return int(found[-1]) if found else None


def score(turns: Sequence[Turn]) -> float:
    """The mean digit of a solution; a reply without a digit counts as 0."""
    return sum(digit(turn) or 0 for turn in turns) / len(turns)


def elected(texts: Sequence[str], scores: Sequence[float]) -> str:
    """The highest-scored solution of the answer with the largest sum of scores; ties: more votes, then the earliest."""
    sums: defaultdict[Hashable, float] = defaultdict(float)
    votes: defaultdict[Hashable, int] = defaultdict(int)
    for text, value in zip(texts, scores, strict=True):
        sums[ballot(text)] += value
        votes[ballot(text)] += 1
    best = max(sums, key=lambda answer: (sums[answer], votes[answer]))
    return max(zip(texts, scores, strict=True), key=lambda pair: (ballot(pair[0]) == best, pair[1]))[0]


async def judge(
    solutions: Sequence[Turn], scores: Sequence[float], digits: Sequence[Sequence[Turn]], grade: Grade
) -> Metrics:
    """Set the reward of every turn; metrics of solver and verifier. `digits` is empty for a reward model."""
    for solution in solutions:
        solution.reward = await grade(solution.text)
    right = [is_correct(solution.reward or 0.0) for solution in solutions]
    texts = [solution.text for solution in solutions]
    metrics = {
        "solver_right": sum(right) / len(right),
        "any_right": float(any(right)),
        "majority_right": float(is_correct(await grade(majority(texts)))),
        "best_scored_right": float(max(zip(scores, right, strict=True), key=lambda pair: pair[0])[1]),
    }
    within = auc(scores, right)
    return metrics | _reward_digits(digits, right) | ({} if within is None else {"auc_within_task": within})


def _reward_digits(digits: Sequence[Sequence[Turn]], right: Sequence[bool]) -> Metrics:
    """Set the reward of the verifier's turns; the share of them without a digit."""
    turns = [(turn, y) for own, y in zip(digits, right, strict=False) for turn in own]
    for turn, y in turns:
        turn.reward = brier(digit(turn), y)
    return {"unreadable": mean([digit(turn) is None for turn, _ in turns])} if turns else {}


def brier(digit: int | None, right: bool) -> float:
    """The Brier score 1 − (d/9 − y)²; 0, its minimum, for a reply without a digit."""
    return 0.0 if digit is None else 1.0 - (digit / 9 - right) ** 2
