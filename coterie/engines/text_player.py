"""The protocol of players that reply with text and no token ids: remote endpoints and people."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from coterie.types import Message, Sampling, Stop


@dataclass(frozen=True)
class TextReply:
    """A reply without token ids. The token counts are those that a remote endpoint reports; 0 for a person."""

    text: str
    stop: Stop
    prompt_tokens: int
    completion_tokens: int


class TextPlayer(Protocol):
    """Plays roles without token ids: a remote endpoint or a person. Its turns are never trained on."""

    async def reply(self, messages: Sequence[Message], seed: int, sampling: Sampling) -> TextReply: ...
