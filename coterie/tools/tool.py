"""Tools for function calling: a typed function with a docstring, its JSON schema and its argument validation."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model

PARAMETER = re.compile(r"^\s*(?P<name>\w+)\s*(?:\([^)]*\))?\s*:\s*(?P<about>.+)$")


class ToolError(Exception):
    """An error that the model caused; the message is shown to it: `raise ToolError("no such page")`."""


@dataclass(frozen=True)
class Tool:
    """A function that a model may call by name. It may be async; its result is shown as text."""

    function: Callable[..., Any]
    name: str

    @cached_property
    def arguments(self) -> type[BaseModel]:
        """A pydantic model of the parameters. Unknown arguments are an error."""
        hints, about = get_type_hints(self.function), _about_parameters(inspect.getdoc(self.function) or "")
        fields: dict[str, Any] = {}
        for parameter in inspect.signature(self.function).parameters.values():
            if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD) or parameter.name not in hints:
                raise TypeError(f"tool {self.name}: {parameter} needs a name and a type annotation, for the schema")
            default = ... if parameter.default is parameter.empty else parameter.default
            described = Field(default, description=about.get(parameter.name))
            fields[parameter.name] = (hints[parameter.name], described)
        return create_model(self.name, __config__=ConfigDict(extra="forbid"), **fields)

    def check(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Validate and convert arguments: "3" becomes 3 for a number. Raises ToolError."""
        try:
            checked = self.arguments.model_validate(arguments)
        except ValidationError as error:
            problems = [f"{'.'.join(map(str, e['loc']))}: {e['msg'].lower()}" for e in error.errors()]
            raise ToolError(f"BadArguments: {self.name}: {'; '.join(problems)}") from None
        return {name: getattr(checked, name) for name in self.arguments.model_fields}


def as_tools(functions: Iterable[Callable[..., Any] | Tool]) -> dict[str, Tool]:
    """Functions as tools, by name."""
    tools = [each if isinstance(each, Tool) else Tool(each, each.__name__) for each in functions]
    return {tool.name: tool for tool in tools}


def tool_schema(function: Callable[..., Any] | Tool) -> dict[str, Any]:
    """The JSON schema of a tool for chat templates: name, description and parameters.

    The description is the docstring up to its lines `parameter: what it is`, which describe the parameters.
    """
    (tool,) = as_tools([function]).values()
    parameters = tool.arguments.model_json_schema()
    parameters = {key: parameters[key] for key in ("type", "properties", "required", "$defs") if key in parameters}
    for value in parameters["properties"].values():
        value.pop("title", None)
    about = _description(inspect.getdoc(tool.function) or "", set(tool.arguments.model_fields))
    if not about:
        raise TypeError(f"tool {tool.name}: needs a docstring, for the schema's description")
    return {"type": "function", "function": {"name": tool.name, "description": about, "parameters": parameters}}


def describe(functions: Iterable[Callable[..., Any] | Tool]) -> str:
    """Describe tools in a system message: their schemas, and how to write a call."""
    listed = "\n".join(json.dumps(tool_schema(function)) for function in functions)
    return (
        f"You can call these tools:\n<tools>\n{listed}\n</tools>\n\n"
        "To call one, write its name and arguments as JSON between tags; you may call several:\n"
        '<tool_call>\n{"name": "the tool", "arguments": {"name": "value"}}\n</tool_call>\n'
        "Then stop and wait for what it returns. Without a call, what you write is your answer."
    )


def _about_parameters(text: str) -> dict[str, str]:
    return {found["name"]: found["about"].strip() for line in text.splitlines() if (found := PARAMETER.match(line))}


def _description(text: str, parameters: set[str]) -> str:
    kept: list[str] = []
    for line in text.splitlines():
        found = PARAMETER.match(line)
        if (found and found["name"] in parameters) or line.strip() == "Args:":
            break
        kept.append(line)
    return "\n".join(kept).strip()
