"""Do what a model asks of a tool. What goes wrong is said to the model, by name."""

from __future__ import annotations

import asyncio
import difflib
import inspect
import json
from collections.abc import Mapping
from typing import Any

from coterie.tools.calls import BadCall, Call
from coterie.tools.tool import Tool, ToolError
from coterie.watchdog import run_in_daemon_thread

# What a function raises when its arguments make no sense, or when what it asks is not there. Anything else is a
# mistake in the tool itself, which the model cannot repair: it ends the episode.
MODEL_ERRORS = (ToolError, ValueError, LookupError, ArithmeticError, OSError)
MOST = 8000  # letters of a result


async def use(call: Call | BadCall, tools: Mapping[str, Tool], deadline: float) -> str:
    """What a call returns, as text; an error in words where it cannot be done within `deadline` seconds.

    Lone surrogates, which an argument may have brought in, become question marks: no tokenizer takes them.
    """
    return (await _used(call, tools, deadline)).encode("utf-8", "replace").decode()


async def _used(call: Call | BadCall, tools: Mapping[str, Tool], deadline: float) -> str:
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
    """A plain function runs in a thread, so that the others go on; a thread cannot be killed, only left alone."""
    if inspect.iscoroutinefunction(tool.function):
        return await tool.function(**arguments)
    return await run_in_daemon_thread(tool.function, **arguments)


def _find(name: str, tools: Mapping[str, Tool]) -> Tool:
    if name not in tools:
        near = difflib.get_close_matches(name, tools, n=1)
        hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(tools)}"
        raise ToolError(f"UnknownTool: no tool is called {name[:100]}; {hint}")
    return tools[name]


def _named(call: Call | BadCall) -> str:
    return call.name if isinstance(call, Call) else "a call"


def _text(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= MOST else f"{text[:MOST]}\n… ({len(text) - MOST} more letters)"
