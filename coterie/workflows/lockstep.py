"""Several at work in one role, each with tools, who speak in a fixed order."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from coterie.types import Agent, Message, Turn


class Ranks:
    """Members of one role who work side by side. Each round all speak at once, when the last has its tools' results.

    A turn is drawn with noise that depends on how often its role has spoken. Were everyone to speak when its own tool
    is done, the order, and so the noise, would depend on how long tools take.
    """

    def __init__(self, agent: Agent, count: int) -> None:
        self.agent = agent
        self.members = [Member(self, number) for number in range(count)]
        self.active = set(range(count))
        self.waiting: dict[int, asyncio.Future[None]] = {}

    def let_speak(self) -> None:
        """Everyone who waits, in order, once nobody else is still busy."""
        if self.waiting and self.active <= self.waiting.keys():
            turns = [self.waiting.pop(number) for number in sorted(self.waiting)]
            # Not at once: who came last would not have to wait, and would speak first.
            asyncio.get_running_loop().call_soon(_let_go, turns)


def _let_go(turns: list[asyncio.Future[None]]) -> None:
    for turn in turns:
        if not turn.done():  # its episode may be over
            turn.set_result(None)


class Member:
    """One of them: an agent while it is entered as a context, out of the ranks after that."""

    def __init__(self, ranks: Ranks, number: int) -> None:
        self.ranks, self.number = ranks, number
        self.role = ranks.agent.role

    @property
    def chat(self) -> Any:
        return self.ranks.agent.chat

    async def say(self, messages: str | Sequence[Message], **sampling: Any) -> Turn:
        await self._turn()
        return await self.ranks.agent.say(messages, **sampling)

    async def say_ids(self, ids: Sequence[int], **sampling: Any) -> Turn:
        await self._turn()
        return await self.ranks.agent.say_ids(ids, **sampling)

    async def _turn(self) -> None:
        ready = self.ranks.waiting[self.number] = asyncio.get_running_loop().create_future()
        self.ranks.let_speak()
        await ready

    def __enter__(self) -> Member:
        return self

    def __exit__(self, *error: object) -> None:
        """However it left, the others must not wait for it."""
        self.ranks.active.discard(self.number)
        self.ranks.waiting.pop(self.number, None)
        self.ranks.let_speak()
