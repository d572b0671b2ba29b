"""Agents of one role that use tools concurrently but sample in lockstep, so that runs are reproducible."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from coterie.types import Agent, Message, Turn


class Lockstep:
    """Several agents of one role. In each round all of them sample together, once all tool calls are done.

    The seed of a turn depends on how many turns its role has taken. If each agent sampled as soon as its own tools are
    done, the order, and so the seeds, would depend on the latency of the tools.
    """

    def __init__(self, agent: Agent, count: int) -> None:
        self.agent = agent
        self.members = [LockstepAgent(self, number) for number in range(count)]
        self.active = set(range(count))
        self.waiting: dict[int, asyncio.Future[None]] = {}

    def release_if_all_wait(self) -> None:
        """Let the waiting agents sample, in order, once no active agent is busy."""
        if self.waiting and self.active <= self.waiting.keys():
            futures = [self.waiting.pop(number) for number in sorted(self.waiting)]
            # Deferred: the agent that came last has not started to wait yet, and would otherwise go first.
            asyncio.get_running_loop().call_soon(_resolve, futures)


def _resolve(futures: list[asyncio.Future[None]]) -> None:
    for future in futures:
        if not future.done():  # its episode was cancelled
            future.set_result(None)


class LockstepAgent:
    """One of the agents. A context manager: on exit it leaves the lockstep."""

    def __init__(self, lockstep: Lockstep, number: int) -> None:
        self.lockstep, self.number = lockstep, number
        self.role = lockstep.agent.role

    @property
    def chat(self) -> Any:
        return self.lockstep.agent.chat

    async def say(self, messages: str | Sequence[Message], **sampling: Any) -> Turn:
        await self._wait()
        return await self.lockstep.agent.say(messages, **sampling)

    async def say_ids(self, ids: Sequence[int], **sampling: Any) -> Turn:
        await self._wait()
        return await self.lockstep.agent.say_ids(ids, **sampling)

    async def _wait(self) -> None:
        ready = self.lockstep.waiting[self.number] = asyncio.get_running_loop().create_future()
        self.lockstep.release_if_all_wait()
        await ready

    def __enter__(self) -> LockstepAgent:
        return self

    def __exit__(self, *error: object) -> None:
        """Also after an exception, so that the others do not wait for it."""
        self.lockstep.active.discard(self.number)
        self.lockstep.waiting.pop(self.number, None)
        self.lockstep.release_if_all_wait()
