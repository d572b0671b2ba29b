"""Prompts with named gaps."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from coterie.types import Message

# What Python's own format would read: a name, maybe with what is taken of it and how it is written.
FIELD = re.compile(r"\s*[^\W\d]\w*(\.\w+|\[\w+\])*\s*(![rsa])?(:\S*)?\s*")
GAP = re.compile(r"\{\{(?P<escaped>[^{}]*)\}\}|\{(?P<name>[^{}]+)\}")


def fill(template: str, values: Mapping[str, str]) -> str:
    """Put a value into each gap; whatever else has braces stays.

    "{question} Use \\boxed{}."   →  "1 + 1? Use \\boxed{}."
    "\\boxed{{answer}}"           →  "\\boxed{answer}"
    """

    def text(gap: re.Match[str]) -> str:
        if gap["name"] is None:
            return f"{{{gap['escaped']}}}"
        return values[gap["name"]] if gap["name"] in values else gap[0]

    return GAP.sub(text, template)


def check(template: str, names: Iterable[str], owner: str) -> None:
    """Complain of a word in braces that nothing will fill, and of a brace without its other half. `owner` says whose
    prompt it is.

    "{answer}" "{task.id}" "{question!r}" "{ question }"   look like gaps, and nothing fills them
    "{question" "question}"                               are halves
    "\\frac{1}{2}" "\\left\\{" "{'a': 1}"                   are text
    """
    allowed = list(names)
    listed = ", ".join(f"{{{name}}}" for name in allowed)
    for gap in GAP.finditer(template):
        if gap["name"] and gap["name"] not in allowed and FIELD.fullmatch(gap["name"]):
            name = f"{{{gap['name']}}}"
            raise ValueError(f"{owner}: unknown field {name}; it may use {listed}, and {{{name}}} for the text {name}")
    if (lone := _lone_brace(template)) is not None:
        near = template[max(0, lone - 15) : lone + 15]
        mend = f"a field is {listed}, and \\{template[lone]} stays as it is"
        raise ValueError(f"{owner}: the {template[lone]} in {near!r} has no other half; {mend}")


def _lone_brace(template: str) -> int | None:
    """Where the first brace stands that nothing closes, or that closes nothing. `\\{` is LaTeX for the sign."""
    open_: list[int] = []
    for brace in re.finditer(r"\\[{}]|[{}]", template):
        if brace[0] == "{":
            open_.append(brace.start())
        elif brace[0] == "}":
            if not open_:
                return brace.start()
            open_.pop()
    return open_[0] if open_ else None


def chat_messages(prompt: str, system: str | None = None) -> list[Message]:
    """A user's message, after a system message where there is one."""
    user = Message(role="user", content=prompt)
    return [user] if system is None else [Message(role="system", content=system), user]
