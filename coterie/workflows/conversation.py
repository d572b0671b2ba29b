"""The first messages of a conversation."""

from __future__ import annotations

from coterie.types import Message


def opening(prompt: str, system: str | None = None) -> list[Message]:
    """A user's message, after a system message where there is one."""
    user = Message(role="user", content=prompt)
    return [user] if system is None else [Message(role="system", content=system), user]
