"""Chain: roles speak in order, and each reads the outputs of those before it."""

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
    """A reasoner thinks, an actor answers; or any longer chain. The last role's output is the answer.

    A prompt may use `{question}` and the name of every earlier role: `{reasoner}` is its output.
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
            if fields := [name for name in ("question", *self.roles) if f"{{{name}}}" in system]:
                why = f"{{{fields[0]}}} is filled in prompts only"
                raise ValueError(f"systems.{role}: {why}; put it into prompts.{role}")
        for position, role in enumerate(self.roles):
            check(self.prompt(role), ["question", *self.roles[:position]], f"prompts.{role}")

    def prompt(self, role: str) -> str:
        """The prompt template of a role."""
        if role in self.prompts:
            return self.prompts[role]
        position = self.roles.index(role)
        if position == 0:
            return FIRST
        notes = "\n\n".join(f"Notes by {earlier}:\n{{{earlier}}}" for earlier in self.roles[:position])
        return f"{{question}}\n\n{notes}\n\n{LAST if role == self.roles[-1] else BETWEEN}"

    async def run(self, task: Task, team: Team, world: Any) -> str:
        outputs = {"question": task.prompt}
        for role in self.roles:
            turn = await team[role].say(chat_messages(fill(self.prompt(role), outputs), self.systems.get(role)))
            outputs[role] = turn.text
        return turn.text


def _check_roles(roles: tuple[str, ...]) -> None:
    """Prompts use role names as placeholders, so names must be unique and not contain braces."""
    if not roles or len({*roles, "question"}) <= len(roles) or any(set("{}") & set(role) for role in roles):
        raise ValueError(f"roles: must be distinct, without braces, and none named question; not {list(roles)}")
