"""A team with scripted replies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from coterie.types import Message, Turn


class ScriptedAgent:
    """One role with scripted replies; records the prompts."""

    def __init__(self, role: str, replies: Sequence[str]) -> None:
        self.role = role
        self.replies = list(replies)
        self.prompts: list[list[Message]] = []
        self.turns: list[Turn] = []

    async def say(self, messages: str | Sequence[Message], **sampling: Any) -> Turn:
        if isinstance(messages, str):
            messages = [Message(role="user", content=messages)]
        self.prompts.append(list(messages))
        text = self.replies.pop(0)
        turn = Turn(self.role, "policy", 0, len(self.prompts) - 1, (1,), (2,), (0.0,), 1.0, text, "end")
        self.turns.append(turn)
        return turn


class Scripted:
    """`Scripted({"solver": ["4", "5"]})`: the solver says 4, then 5."""

    def __init__(self, replies: Mapping[str, Sequence[str]], agent: type[ScriptedAgent] = ScriptedAgent) -> None:
        self._agents = {role: agent(role, texts) for role, texts in replies.items()}

    def __getattr__(self, role: str) -> ScriptedAgent:
        return self._agents[role]

    def __getitem__(self, role: str) -> ScriptedAgent:
        return self._agents[role]

    def said(self) -> list[Turn]:
        """All turns, role by role."""
        return [turn for agent in self._agents.values() for turn in agent.turns]
