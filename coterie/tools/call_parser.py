"""Parse tool calls from a model's text, in the formats of common chat templates: Hermes, Qwen, Llama 3, Gemma."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from coterie.tools.tool import Tool

TAGGED = re.compile(r"<tool_call>(?P<body>.*?)(?:</tool_call>|(?=<tool_call>)|\Z)", re.DOTALL)
FENCED = re.compile(
    r"^[ \t]*```[ \t]*(?P<language>python|py|tool_code)[ \t]*\n(?P<body>.*?)^[ \t]*```", re.DOTALL | re.M
)
TAG = "<|python_tag|>"
PYTHON = "python"  # the tool that runs a code block
BETWEEN = re.compile(r"[;\s]*")
MAX_CODE = 10_000  # characters of code that is searched for tool calls; parsing blocks the event loop
MAX_CALLS = 16  # in one message
SHOWN = 100  # characters of a bad call in its error


@dataclass(frozen=True)
class Call:
    """A tool call: the tool's name and its arguments."""

    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class BadCall:
    """A tool call that cannot be parsed; `problem` is an error message for the model."""

    problem: str


def read_calls(text: str, tools: Mapping[str, Tool]) -> list[Call | BadCall]:
    """The tool calls in a text, in order; empty if it is an answer.

    <tool_call>{"name": "search", "arguments": {"query": "Rome"}}</tool_call>      Hermes, Qwen; any number of them
    {"name": "search", "parameters": {"query": "Rome"}}                            Llama 3, the whole text
    <|python_tag|>search.call(query="Rome")                                        Llama 3; or JSON, or code
    ```tool_code                                                                   Gemma; or a Python block
    search(query="Rome")
    ```

    Code that consists of tool calls is read as these calls; other code is a call of the tool `python`, if there is one.
    """
    calls = list(islice(_parse(text, tools), MAX_CALLS + 1))
    if len(calls) > MAX_CALLS:
        calls[MAX_CALLS] = BadCall(f"TooManyCalls: only the first {MAX_CALLS} calls of a message are made")
    return calls


def _parse(text: str, tools: Mapping[str, Tool]) -> Iterator[Call | BadCall]:
    bare = text.strip()
    if "<tool_call>" in text:
        yield from (_from_json(found["body"].strip()) for found in TAGGED.finditer(text))
    elif TAG in bare:
        body = bare.partition(TAG)[2].strip()
        yield from _objects(body) if body.startswith("{") else _from_code(body, tools)
    elif re.match(r'\{\s*"(?:name|type|function)"\s*:', bare):
        yield from _objects(bare)
    else:
        for found in FENCED.finditer(text):
            yield from _from_code(found["body"], tools, found["language"])


def _objects(text: str) -> Iterator[Call | BadCall]:
    """Consecutive JSON objects, separated by `;` or nothing."""
    decoder, place = json.JSONDecoder(), 0
    while place < len(text):
        try:
            value, end = decoder.raw_decode(text, place)
        except (ValueError, RecursionError):
            yield _from_json(text[place:])
            return
        yield _from_object(value, text[place:end])
        place = end + len(BETWEEN.match(text, end)[0])  # type: ignore[index]  # matches the empty text, too


def _from_json(text: str) -> Call | BadCall:
    try:
        return _from_object(json.loads(text), text)
    except json.JSONDecodeError as error:
        return BadCall(f"BadJson: {error.msg} at letter {error.pos} of this call: {text[:SHOWN]}")
    except ValueError:  # Python parses no integer of more than 4,300 digits
        return BadCall(f"BadJson: a number has too many digits: {text[:SHOWN]}")
    except RecursionError:
        return BadCall(f"BadJson: too deeply nested: {text[:SHOWN]}")


def _from_object(value: Any, text: str) -> Call | BadCall:
    if isinstance(value, dict) and isinstance(value.get("function"), dict):
        value = value["function"]  # the format of OpenAI's API
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        return BadCall(f'BadCall: expected an object with "name" and "arguments", got {text[:SHOWN]}')
    if not is_unicode(value["name"]):
        return BadCall(f"BadCall: the name of the tool is not valid Unicode: {text[:SHOWN]}")
    arguments = value.get("arguments", value.get("parameters", {}))
    if isinstance(arguments, str):  # JSON encoded as a string
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError):
            return BadCall(f"BadJson: the arguments of {value['name']} are not a JSON object: {arguments[:SHOWN]}")
    if not isinstance(arguments, dict):
        return BadCall(f"BadCall: the arguments of {value['name']} must be an object: {text[:SHOWN]}")
    return Call(value["name"], arguments)


def is_unicode(text: str) -> bool:
    """False if there is a lone surrogate, such as JSON's "\\ud800", which no tokenizer accepts."""
    return text.encode("utf-8", "replace").decode() == text


def _from_code(code: str, tools: Mapping[str, Tool], language: str = PYTHON) -> list[Call | BadCall]:
    """Tool calls if the code has nothing else; otherwise a call of the tool `python` with the code, if there is one."""
    if not code.strip():
        return []
    try:
        calls = list(_tool_calls(ast.parse(code.strip()), tools)) if len(code) < MAX_CODE else []
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError) as error:  # {[]: 1} is a TypeError
        calls, problem = [], f"BadCode: {str(error)[:SHOWN]}"
    else:
        problem = f"UnknownTool: this calls no tool; there are {', '.join(tools)}: {code.strip()[:SHOWN]}"
    if calls:
        return list(calls)
    if PYTHON in tools:
        return [Call(PYTHON, {"code": code})]
    return [] if language != "tool_code" else [BadCall(problem)]  # a fenced program may be the answer


def _tool_calls(tree: ast.Module, tools: Mapping[str, Tool]) -> Iterator[Call]:
    """The calls of a program that only calls tools; none if a tool is unknown; ValueError for other statements."""
    expressions = [part for line in tree.body for part in _parts(line)]
    for call in expressions:
        name = _name(call)
        if name not in tools or not isinstance(call, ast.Call):
            return
    for call in expressions:
        assert isinstance(call, ast.Call)
        tool = tools[_name(call)]
        places = zip(tool.arguments.model_fields, call.args, strict=False)
        given = {name: ast.literal_eval(value) for name, value in places}
        yield Call(tool.name, given | {word.arg or "**": ast.literal_eval(word.value) for word in call.keywords})


def _parts(line: ast.stmt) -> list[ast.expr]:
    """`f(1)`, `x = f(1)`, `print(f(1))` and `[f(1), g(2)]` all call f."""
    if not isinstance(line, ast.Expr | ast.Assign):
        raise ValueError("more than calls")
    match line.value:
        case ast.List(elts=elements):
            return elements
        case ast.Call(func=ast.Name(id="print"), args=[inner]):
            return [inner]
        case value:
            return [value]


def _name(call: ast.expr) -> str:
    match call:
        case ast.Call(func=ast.Name(id=name)):
            return name
        case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr="call")):
            return name
        case _:
            return ""
