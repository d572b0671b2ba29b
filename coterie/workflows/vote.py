"""One role is asked several times and the majority wins."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from coterie.prompts import chat_messages, check, fill
from coterie.types import Task, Team
from coterie.workflows.majority import majority


@dataclass(frozen=True)
class Vote:
    """The same question to the same role, `voters` times; the answer most of them agree on."""

    role: str = "solver"  # the role that votes
    voters: int = 5  # votes per task
    prompt: str = "{question}"  # the prompt; may use {question}
    system: str | None = None  # the system message; null: none

    def __post_init__(self) -> None:
        check(self.prompt, ["question"], "prompt")
        if self.voters < 1:
            raise ValueError(f"voters: at least 1, not {self.voters}")

    @property
    def roles(self) -> tuple[str, ...]:
        return (self.role,)

    async def run(self, task: Task, team: Team, world: Any) -> str:
        messages = chat_messages(fill(self.prompt, {"question": task.prompt}), self.system)
        turns = await asyncio.gather(*(team[self.role].say(messages) for _ in range(self.voters)))
        return majority([turn.text for turn in turns])
