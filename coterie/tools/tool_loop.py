"""The tool loop of an agent: sample, execute its tool calls, append the results, until it answers."""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from coterie.errors import did_you_mean
from coterie.tools.call_parser import BadCall, Call, read_calls
from coterie.tools.tool import Tool, ToolError, as_tools
from coterie.types import Agent, Message, Turn
from coterie.watchdog import run_in_daemon_thread

# Exceptions caused by the arguments, shown to the model. Any other is a bug in the tool and fails the episode.
MODEL_ERRORS = (ToolError, ValueError, LookupError, ArithmeticError, OSError)
MAX_RESULT = 8000  # characters of a result


@dataclass(frozen=True)
class Conversation:
    """The result of a tool loop."""

    text: str  # of the last turn
    turns: tuple[Turn, ...]
    calls: tuple[Call | BadCall, ...]
    results: tuple[str, ...]  # one per call
    messages: tuple[Message, ...]  # the whole conversation, including the last turn
    answered: bool  # False if the last turn still called a tool


async def converse(
    agent: Agent,
    messages: Sequence[Message],
    tools: Iterable[Callable[..., Any] | Tool],
    limit: int = 4,  # turns
    deadline: float = 30.0,  # seconds for each call
    **sampling: Any,
) -> Conversation:
    """Run the tool loop until a turn calls no tool or the limit is reached.

    The calls of a turn run concurrently; their results are one message of the role `tool`, which is part of the next
    prompt and therefore never trained on. Describe the tools to the model with `describe(tools)`.
    """
    known, conversation = as_tools(tools), list(messages)
    turns, calls, results = list[Turn](), list[Call | BadCall](), list[str]()
    requested: list[Call | BadCall] = []
    for number in range(limit):
        turn = await agent.say(list(conversation), **sampling)
        turns.append(turn)
        conversation.append(Message(role="assistant", content=turn.text))
        requested = read_calls(turn.text, known)
        if not requested or number == limit - 1:
            break
        found = await asyncio.gather(*(execute(call, known, deadline) for call in requested))
        calls += requested
        results += found
        conversation.append(Message(role="tool", content="\n\n".join(found)))
    return Conversation(turns[-1].text, tuple(turns), tuple(calls), tuple(results), tuple(conversation), not requested)


async def execute(call: Call | BadCall, tools: Mapping[str, Tool], deadline: float) -> str:
    """Execute a tool call; its result as text, or an error message for the model.

    Lone surrogates, which arguments may contain, become question marks: no tokenizer accepts them.
    """
    return (await _execute(call, tools, deadline)).encode("utf-8", "replace").decode()


async def _execute(call: Call | BadCall, tools: Mapping[str, Tool], deadline: float) -> str:
    try:
        if isinstance(call, BadCall):
            raise ToolError(call.problem)
        tool = _find(call.name, tools)
        async with asyncio.timeout(deadline):
            return _text(await _call(tool, tool.check(call.arguments)))
    except TimeoutError:
        return f"Error: Timeout: {_named(call)} took more than {deadline:g} s"
    except ToolError as error:
        return f"Error: {error}"
    except MODEL_ERRORS as error:
        return f"Error: {type(error).__name__}: {_named(call)}: {error}"


async def _call(tool: Tool, arguments: dict[str, Any]) -> Any:
    """Call a tool. A plain function runs in a thread, which keeps the event loop free and is abandoned on timeout."""
    if inspect.iscoroutinefunction(tool.function):
        return await tool.function(**arguments)
    return await run_in_daemon_thread(tool.function, **arguments)


def _find(name: str, tools: Mapping[str, Tool]) -> Tool:
    if name not in tools:
        hint = did_you_mean(name, tools) or f"; there are {', '.join(tools)}"
        raise ToolError(f"UnknownTool: no tool is called {name[:100]}{hint}")
    return tools[name]


def _named(call: Call | BadCall) -> str:
    return call.name if isinstance(call, Call) else "a call"


def _text(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= MAX_RESULT else f"{text[:MAX_RESULT]}\n… ({len(text) - MAX_RESULT} more letters)"
