"""Roles speak one after the other, each having read those before it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from coterie.prompts import chat_messages, check, fill
from coterie.types import Task, Team

FIRST = "{question}\n\nWork it out briefly, step by step."
LAST = "Using these notes, give the final answer."
BETWEEN = "Check these notes and improve them."


@dataclass(frozen=True)
class Chain:
    """A reasoner thinks, an actor answers; or any longer chain. What the last one says is the answer.

    A prompt may use `{question}` and the name of every earlier role: `{reasoner}` is what it said.
    """

    roles: tuple[str, ...] = ("reasoner", "actor")  # the roles, in the order they speak
    prompts: dict[str, str] = field(default_factory=dict)  # prompts by role; a role without one gets a default
    systems: dict[str, str] = field(default_factory=dict)  # system messages by role

    def __post_init__(self) -> None:
        _check_roles(self.roles)
        for option in ("prompts", "systems"):
            for role in getattr(self, option):
                if role not in self.roles:
                    raise ValueError(f"{option}.{role}: no such role; the chain is {' → '.join(self.roles)}")
        for role, system in self.systems.items():
            if gaps := [name for name in ("question", *self.roles) if f"{{{name}}}" in system]:
                raise ValueError(f"systems.{role}: {{{gaps[0]}}} is filled in prompts only; put it into prompts.{role}")
        for position, role in enumerate(self.roles):
            check(self.prompt(role), ["question", *self.roles[:position]], f"prompts.{role}")

    def prompt(self, role: str) -> str:
        """The template a role is asked with."""
        if role in self.prompts:
            return self.prompts[role]
        position = self.roles.index(role)
        if position == 0:
            return FIRST
        notes = "\n\n".join(f"Notes by {earlier}:\n{{{earlier}}}" for earlier in self.roles[:position])
        return f"{{question}}\n\n{notes}\n\n{LAST if role == self.roles[-1] else BETWEEN}"

    async def run(self, task: Task, team: Team, world: Any) -> str:
        said = {"question": task.prompt}
        for role in self.roles:
            turn = await team[role].say(chat_messages(fill(self.prompt(role), said), self.systems.get(role)))
            said[role] = turn.text
        return turn.text


def _check_roles(roles: tuple[str, ...]) -> None:
    """A prompt names a role in braces, so each name must mean one thing there."""
    if not roles or len({*roles, "question"}) <= len(roles) or any(set("{}") & set(role) for role in roles):
        raise ValueError(f"roles: each role once, no braces, and none is called question; not {list(roles)}")
