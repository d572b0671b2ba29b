"""CORY: a pioneer answers; an observer reads that answer and gives its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from coterie.prompts import chat_messages, check, fill
from coterie.types import Task, Team

OBSERVE = "{question}\n\nSomeone answered:\n{pioneer}\n\nGive your own answer to the question."


@dataclass(frozen=True)
class Cory:
    """The pioneer answers the question; the observer reads the question and the pioneer's answer, and answers, too.

    Each role's answer is scored on its own; `credit: aggregate` gives both roles the sum.
    """

    prompt: str = "{question}"  # the pioneer's prompt
    observe: str = OBSERVE  # the observer's prompt; {pioneer} is the pioneer's answer
    system: str | None = None  # the system message of both; null: none

    def __post_init__(self) -> None:
        check(self.prompt, ["question"], "prompt")
        check(self.observe, ["question", "pioneer"], "observe")

    @property
    def roles(self) -> tuple[str, ...]:
        return ("pioneer", "observer")

    async def run(self, task: Task, team: Team, world: Any) -> dict[str, str]:
        values = {"question": task.prompt}
        pioneer = await team.pioneer.say(chat_messages(fill(self.prompt, values), self.system))
        values["pioneer"] = pioneer.text
        observer = await team.observer.say(chat_messages(fill(self.observe, values), self.system))
        return {"pioneer": pioneer.text, "observer": observer.text}
