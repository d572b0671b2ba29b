"""Majority vote (self-consistency): one role answers several times, and the most frequent answer wins."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

from coterie.envs.code import CodeWorld, of_each
from coterie.prompts import Examples, chat_messages, check, check_counts, fill
from coterie.rewards.answer_extraction import NUMBER, last_number, marked_answer
from coterie.types import Task, Team


@dataclass(frozen=True)
class Vote:
    """Asks one role the same question `voters` times; the majority's answer counts.

    Programs vote by their outputs on the visible tests, not by their text.
    """

    role: str = "solver"  # the role that votes
    voters: int = 5  # votes per task
    prompt: str = "{question}"  # the prompt; may use {question}
    system: str | None = None  # the system message; null: none
    examples: Examples = ()  # few-shot: [user message, reply] pairs that come before the prompt

    def __post_init__(self) -> None:
        check(self.prompt, ["question"], "prompt")
        check_counts(self, "voters")

    @property
    def roles(self) -> tuple[str, ...]:
        return (self.role,)

    async def run(self, task: Task, team: Team, world: Any) -> str:
        messages = chat_messages(fill(self.prompt, {"question": task.prompt}), self.system, self.examples)
        turns = await asyncio.gather(*(team[self.role].say(messages) for _ in range(self.voters)))
        return await elect([turn.text for turn in turns], world)


async def elect(answers: Sequence[str], world: Any) -> str:
    """The majority's answer. Programs vote by their outputs on the visible tests, right or wrong; an answer without a
    program has no vote."""
    if not isinstance(world, CodeWorld):
        return majority(answers)
    outputs = await of_each(answers, world.outputs)
    votes = Counter(outputs)
    votes[None] = 0
    return max(zip(answers, outputs, strict=True), key=lambda pair: votes[pair[1]])[0]


def majority(answers: Sequence[str]) -> str:
    """The text of the first answer in the largest group of equal answers; ties go to the earliest."""
    votes = Counter(ballot(answer) for answer in answers)
    return max(answers, key=lambda answer: votes[ballot(answer)])


def ballot(answer: str) -> Hashable:
    """The key by which answers are counted: the final answer (as in a box), else the last number, else the text.

    "So 5." and "5.0" are one ballot. A box is read as a number only if it holds nothing else, because
    `\\frac{1}{2}` and `\\frac{3}{2}` end in the same number.
    """
    box = marked_answer(answer)
    if box is not None and not NUMBER.fullmatch(box.strip()):
        return "".join(box.split())
    number = last_number(box or answer)
    return number if number is not None else answer.strip().casefold()
