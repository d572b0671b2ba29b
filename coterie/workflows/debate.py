"""Multi-agent debate: roles answer independently, read each other's answers, and revise their own."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass
from typing import Any, Literal

from coterie.limits import PositiveShare
from coterie.prompts import chat_messages, check, fill
from coterie.types import Message, Task, Team
from coterie.workflows.vote import ballot, majority


@dataclass(frozen=True)
class Debate:
    """In each round all roles answer; the majority of the last round's answers counts.

    Each role has one growing conversation, so the KV cache of its last turn is a prefix of its next prompt.
    """

    roles: tuple[str, ...] = ("first", "second", "third")  # the debaters
    rounds: int = 2  # rounds, the independent first one included
    prompt: str = "{question}"  # prompt of the first round
    # prompt of later rounds; {others} are the others' last answers
    revise: str = "{others}\n\nCompare this with your answer, then give your final answer to the question."
    system: str | None = None  # everyone's system message; null: none
    # stop once this fraction of the roles agrees; null: play all rounds
    consensus: PositiveShare | None = None
    # grade the majority's answer, or every answer as its turn's own reward
    grade: Literal["majority", "each"] = "majority"

    def __post_init__(self) -> None:
        check(self.prompt, ["question"], "prompt")
        check(self.revise, ["question", "others"], "revise")
        if len(self.roles) < 2 or len(set(self.roles)) < len(self.roles):
            raise ValueError(f"roles: two or more distinct names, not {list(self.roles)}")
        if self.rounds < 1:
            raise ValueError(f"rounds: at least 1, not {self.rounds}")

    async def run(self, task: Task, team: Team, world: Any) -> str | dict[str, list[str]]:
        start = chat_messages(fill(self.prompt, {"question": task.prompt}), self.system)
        conversations = {role: list(start) for role in self.roles}
        latest = await self._round(team, conversations)
        answers = {role: [text] for role, text in latest.items()}
        while len(answers[self.roles[0]]) < self.rounds and not self._agree(latest):
            for role, conversation in conversations.items():
                request = fill(self.revise, {"question": task.prompt, "others": _others(role, latest)})
                conversation.append(Message(role="assistant", content=latest[role]))
                conversation.append(Message(role="user", content=request))
            latest = await self._round(team, conversations)
            for role, text in latest.items():
                answers[role].append(text)
        return majority(list(latest.values())) if self.grade == "majority" else answers

    async def _round(self, team: Team, conversations: dict[str, list[Message]]) -> dict[str, str]:
        """Sample all roles concurrently; their answers, in the order of the roles."""
        turns = await asyncio.gather(*(team[role].say(list(conversations[role])) for role in self.roles))
        return {role: turn.text for role, turn in zip(self.roles, turns, strict=True)}

    def _agree(self, answers: dict[str, str]) -> bool:
        votes = Counter(ballot(text) for text in answers.values())
        return self.consensus is not None and max(votes.values()) >= self.consensus * len(answers)


def _others(role: str, answers: dict[str, str]) -> str:
    return "\n\n".join(f"{other} said:\n{text}" for other, text in answers.items() if other != role)
