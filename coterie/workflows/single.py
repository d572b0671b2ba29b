"""Single agent: one role answers in one turn."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from coterie.prompts import Examples, chat_messages, check, fill
from coterie.types import Task, Team


@dataclass(frozen=True)
class Single:
    """One role is sampled once; its text is the answer."""

    role: str = "solver"  # the name of the role
    prompt: str = "{question}"  # its prompt; may use {question}
    system: str | None = None  # its system message; null: none
    examples: Examples = ()  # few-shot: [user message, reply] pairs that come before the prompt

    def __post_init__(self) -> None:
        check(self.prompt, ["question"], "prompt")

    @property
    def roles(self) -> tuple[str, ...]:
        return (self.role,)

    async def run(self, task: Task, team: Team, world: Any) -> str:
        prompt = fill(self.prompt, {"question": task.prompt})
        turn = await team[self.role].say(chat_messages(prompt, self.system, self.examples))
        return turn.text
