"""Roles answer on their own, read each other, and answer again."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass
from typing import Any, Literal

from coterie.limits import PositiveShare
from coterie.prompts import chat_messages, check, fill
from coterie.types import Message, Task, Team
from coterie.workflows.majority import ballot, majority


@dataclass(frozen=True)
class Debate:
    """Everyone answers, then everyone reads the others and answers again; the majority's last answer counts.

    Each role keeps one growing conversation, so its next turn goes on where the last one ended.
    """

    roles: tuple[str, ...] = ("first", "second", "third")  # the debaters
    rounds: int = 2  # rounds, the independent first one included
    prompt: str = "{question}"  # prompt of the first round
    # prompt of later rounds; {others} are the others' last answers
    revise: str = "{others}\n\nCompare this with your answer, then give your final answer to the question."
    system: str | None = None  # everyone's system message; null: none
    # Stop once so large a share agrees. How good the answers are cannot count here: that is known when all is said.
    consensus: PositiveShare | None = None
    # grade the majority's answer, or every answer as its turn's own reward
    grade: Literal["majority", "each"] = "majority"

    def __post_init__(self) -> None:
        check(self.prompt, ["question"], "prompt")
        check(self.revise, ["question", "others"], "revise")
        if len(self.roles) < 2 or len(set(self.roles)) < len(self.roles):
            raise ValueError(f"roles: two or more different ones, not {list(self.roles)}")
        if self.rounds < 1:
            raise ValueError(f"rounds: at least 1, not {self.rounds}")

    async def run(self, task: Task, team: Team, world: Any) -> str | dict[str, list[str]]:
        start = chat_messages(fill(self.prompt, {"question": task.prompt}), self.system)
        talks = {role: list(start) for role in self.roles}
        said = await self._round(team, talks)
        answers = {role: [text] for role, text in said.items()}
        while len(answers[self.roles[0]]) < self.rounds and not self._agree(said):
            for role, talk in talks.items():
                request = fill(self.revise, {"question": task.prompt, "others": _others(role, said)})
                talk += [Message(role="assistant", content=said[role]), Message(role="user", content=request)]
            said = await self._round(team, talks)
            for role, text in said.items():
                answers[role].append(text)
        return majority(list(said.values())) if self.grade == "majority" else answers

    async def _round(self, team: Team, talks: dict[str, list[Message]]) -> dict[str, str]:
        """Everyone speaks at once; what each said, in the order of the roles."""
        turns = await asyncio.gather(*(team[role].say(list(talks[role])) for role in self.roles))
        return {role: turn.text for role, turn in zip(self.roles, turns, strict=True)}

    def _agree(self, said: dict[str, str]) -> bool:
        votes = Counter(ballot(text) for text in said.values())
        return self.consensus is not None and max(votes.values()) >= self.consensus * len(said)


def _others(role: str, said: dict[str, str]) -> str:
    return "\n\n".join(f"{other} said:\n{text}" for other, text in said.items() if other != role)
