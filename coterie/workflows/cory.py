"""One answers, the other reads that and answers too."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from coterie.prompts import chat_messages, check, fill
from coterie.types import Task, Team

OBSERVE = "{question}\n\nSomeone answered:\n{pioneer}\n\nGive your own answer to the question."


@dataclass(frozen=True)
class Cory:
    """The pioneer answers the question; the observer reads the question and the pioneer's answer, and answers again.

    Both answers are graded, each as its own role's; `credit: aggregate` gives both roles the sum.
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
        said = {"question": task.prompt}
        pioneer = await team.pioneer.say(chat_messages(fill(self.prompt, said), self.system))
        said["pioneer"] = pioneer.text
        observer = await team.observer.say(chat_messages(fill(self.observe, said), self.system))
        return {"pioneer": pioneer.text, "observer": observer.text}
