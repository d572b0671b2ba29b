"""Let an agent work with tools until it answers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from coterie.tools.calls import BadCall, Call, read_calls
from coterie.tools.tool import Tool, as_tools
from coterie.tools.use import use
from coterie.types import Agent, Message, Turn


@dataclass(frozen=True)
class Conversation:
    """What an agent said with its tools at hand, and where that led."""

    text: str  # what it said last
    turns: tuple[Turn, ...]
    calls: tuple[Call | BadCall, ...]
    results: tuple[str, ...]  # of the calls, one each
    messages: tuple[Message, ...]  # to go on from, its last words included
    answered: bool  # False: it still wanted a tool when its rounds were over


async def converse(
    agent: Agent,
    messages: Sequence[Message],
    tools: Iterable[Callable[..., Any] | Tool],
    limit: int = 4,  # how often it may speak
    deadline: float = 30.0,  # seconds for each call
    **sampling: Any,
) -> Conversation:
    """Say, call, read the results, say again, until a turn calls nothing or the limit is reached.

    All calls of a turn run at once; their results are one message of the role `tool`. It is part of the next prompt,
    so nobody is ever trained on it. What the tools are, tell the model yourself: `describe(tools)`.
    """
    known, talk = as_tools(tools), list(messages)
    turns, calls, results = list[Turn](), list[Call | BadCall](), list[str]()
    wanted: list[Call | BadCall] = []
    for spoken in range(limit):
        turn = await agent.say(list(talk), **sampling)
        turns.append(turn)
        talk.append(Message(role="assistant", content=turn.text))
        wanted = read_calls(turn.text, known)
        if not wanted or spoken == limit - 1:
            break
        found = await asyncio.gather(*(use(call, known, deadline) for call in wanted))
        calls += wanted
        results += found
        talk.append(Message(role="tool", content="\n\n".join(found)))
    return Conversation(turns[-1].text, tuple(turns), tuple(calls), tuple(results), tuple(talk), not wanted)
