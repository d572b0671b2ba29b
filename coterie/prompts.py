"""Prompt templates with named fields, and checks of a workflow's options."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from coterie.types import Message

# What str.format would accept as a field: a name, with optional attributes, conversion and format spec.
FIELD = re.compile(r"\s*[^\W\d]\w*(\.\w+|\[\w+\])*\s*(![rsa])?(:\S*)?\s*")
FIELD_OR_ESCAPE = re.compile(r"\{\{(?P<escaped>[^{}]*)\}\}|\{(?P<name>[^{}]+)\}")


def fill(template: str, values: Mapping[str, str]) -> str:
    """Replace each known field by its value; other braces stay.

    "{question} Use \\boxed{}."   →  "1 + 1? Use \\boxed{}."
    "\\boxed{{answer}}"           →  "\\boxed{answer}"
    """

    def text(match: re.Match[str]) -> str:
        if match["name"] is None:
            return f"{{{match['escaped']}}}"
        return values[match["name"]] if match["name"] in values else match[0]

    return FIELD_OR_ESCAPE.sub(text, template)


def check(template: str, names: Iterable[str], owner: str) -> None:
    """Reject unknown fields and unbalanced braces in a template; `owner` names it in the error.

    "{answer}" "{task.id}" "{question!r}" "{ question }"   look like fields, and nothing fills them
    "{question" "question}"                               are unbalanced
    "\\frac{1}{2}" "\\left\\{" "{'a': 1}"                   are text
    """
    allowed = list(names)
    listed = ", ".join(f"{{{name}}}" for name in allowed)
    for match in FIELD_OR_ESCAPE.finditer(template):
        if match["name"] and match["name"] not in allowed and FIELD.fullmatch(match["name"]):
            name = f"{{{match['name']}}}"
            raise ValueError(f"{owner}: unknown field {name}; it may use {listed}, and {{{name}}} for the text {name}")
    if (position := _unbalanced_brace(template)) is not None:
        near = template[max(0, position - 15) : position + 15]
        hint = f"fields are {listed}, and \\{template[position]} is kept as it is"
        raise ValueError(f"{owner}: the {template[position]} in {near!r} is unbalanced; {hint}")


def check_counts(part: object, *names: str) -> None:
    """Reject options of a part that are below 1."""
    for name in names:
        if getattr(part, name) < 1:
            raise ValueError(f"{name}: at least 1, not {getattr(part, name)}")


def _unbalanced_brace(template: str) -> int | None:
    """The position of the first unbalanced brace, or None. `\\{` is a literal brace in LaTeX."""
    open_: list[int] = []
    for brace in re.finditer(r"\\[{}]|[{}]", template):
        if brace[0] == "{":
            open_.append(brace.start())
        elif brace[0] == "}":
            if not open_:
                return brace.start()
            open_.pop()
    return open_[0] if open_ else None


Examples = tuple[tuple[str, str], ...]  # few-shot: user messages and their replies


def chat_messages(prompt: str, system: str | None = None, examples: Examples = ()) -> list[Message]:
    """A user message, after a system message if there is one and the few-shot examples."""
    messages = [] if system is None else [Message(role="system", content=system)]
    for question, reply in examples:
        messages += [Message(role="user", content=question), Message(role="assistant", content=reply)]
    return [*messages, Message(role="user", content=prompt)]


def lone_surrogate(text: str) -> str | None:
    """What is wrong with a text that no tokenizer can read, or None: JSON can write halves of a surrogate pair."""
    if text.isascii():
        return None
    try:
        text.encode()
    except UnicodeEncodeError as error:
        return f"has a lone surrogate at character {error.start}, which is not valid text"
    return None
