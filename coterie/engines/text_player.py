"""Who plays roles by text alone: the protocol of remote endpoints and people."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from coterie.types import Message, Sampling, Stop


@dataclass(frozen=True)
class TextReply:
    """A reply without token ids, from a remote endpoint or a person; the endpoint counts its tokens."""

    text: str
    stop: Stop
    prompt_tokens: int
    completion_tokens: int


class TextPlayer(Protocol):
    """Plays roles by text alone: a remote endpoint or a person. Its turns have no ids and are never trained on."""

    async def reply(self, messages: Sequence[Message], seed: int, sampling: Sampling) -> TextReply: ...
