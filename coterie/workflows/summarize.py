"""Summarize: several roles answer independently, and one reads all answers and gives the team's."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

from coterie.prompts import chat_messages, check, fill
from coterie.types import Task, Team


@dataclass(frozen=True)
class Summarize:
    """Solvers answer concurrently; the summarizer reads their answers and gives the team's."""

    solvers: tuple[str, ...] = ("first", "second", "third")  # the roles that answer
    summarizer: str = "summarizer"  # the role that reads them and answers last
    prompt: str = "{question}"  # the solvers' prompt
    # the summarizer's prompt; may use {answers}
    summary: str = "{question}\n\n{answers}\n\nSum up what is right in these answers, then give the final answer."
    systems: dict[str, str] = field(default_factory=dict)  # system messages by role

    def __post_init__(self) -> None:
        check(self.prompt, ["question"], "prompt")
        check(self.summary, ["question", "answers"], "summary")
        if not self.solvers or len(set(self.roles)) < len(self.roles):
            raise ValueError(f"solvers: one or more distinct names, not {list(self.solvers)} with {self.summarizer}")

    @property
    def roles(self) -> tuple[str, ...]:
        return (*self.solvers, self.summarizer)

    async def run(self, task: Task, team: Team, world: Any) -> str:
        systems, question = self.systems, {"question": task.prompt}
        prompt = fill(self.prompt, question)
        replies = (team[role].say(chat_messages(prompt, systems.get(role))) for role in self.solvers)
        turns = await asyncio.gather(*replies)
        summary = fill(self.summary, question | {"answers": listed([turn.text for turn in turns])})
        return (await team[self.summarizer].say(chat_messages(summary, systems.get(self.summarizer)))).text


def listed(answers: list[str]) -> str:
    """Answers for a prompt, numbered and without role names."""
    return "\n\n".join(f"Answer {number}:\n{answer}" for number, answer in enumerate(answers, 1))
