"""A team that says what it was told to say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from coterie.types import Message, Turn


class Line:
    """One role with its lines, and what it was asked."""

    def __init__(self, role: str, lines: Sequence[str]) -> None:
        self.role = role
        self.lines = list(lines)
        self.heard: list[list[Message]] = []
        self.turns: list[Turn] = []

    async def say(self, messages: str | Sequence[Message], **sampling: Any) -> Turn:
        if isinstance(messages, str):
            messages = [Message(role="user", content=messages)]
        self.heard.append(list(messages))
        text = self.lines.pop(0)
        turn = Turn(self.role, "policy", 0, len(self.heard) - 1, (1,), (2,), (0.0,), 1.0, text, "end")
        self.turns.append(turn)
        return turn


class Scripted:
    """`Scripted({"solver": ["4", "5"]})`: the solver says 4, then 5."""

    def __init__(self, lines: Mapping[str, Sequence[str]], agent: type[Line] = Line) -> None:
        self._agents = {role: agent(role, said) for role, said in lines.items()}

    def __getattr__(self, role: str) -> Line:
        return self._agents[role]

    def __getitem__(self, role: str) -> Line:
        return self._agents[role]

    def said(self) -> list[Turn]:
        """All turns, role by role."""
        return [turn for agent in self._agents.values() for turn in agent.turns]
