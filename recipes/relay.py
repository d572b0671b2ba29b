"""The workflow of the demo: two roles add three numbers, each a part of the sum."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from coterie import Message, Task, Team, Turn
from coterie.rewards.answer_extraction import last_number

# An example shows the form of an answer, so only adding has to be learned.
START = (
    Message(role="system", content="You are a calculator."),
    Message(role="user", content="2 + 3 = ?"),
    Message(role="assistant", content="2 + 3 = 5"),
)


@dataclass(frozen=True)
class Relay:
    """The first adds two numbers; the second, which never sees them, adds the third to the first's result.

    3 + 5 + 9  →  first: "3 + 5 = ?"  →  "3 + 5 = 8"  →  second: "8 + 9 = ?"  →  "8 + 9 = 17"
    """

    roles: tuple[str, str] = ("first", "second")

    async def run(self, task: Task, team: Team, world: Any) -> str:
        *two, sign, third = terms_of(task.prompt)
        found = last_number(finished(await team["first"].say(sum_of(" ".join(two)))))
        if found is None:
            return ""
        return finished(await team["second"].say(sum_of(f"{found} {sign} {third}")))


def terms_of(question: str) -> list[str]:
    terms = question.split()
    if len(terms) != 5 or any(last_number(term) is None for term in terms[::2]):  # as in a chat
        raise ValueError(f"this team adds three numbers, as in '3 + 5 + 9', and was asked {question!r}")
    return terms


def sum_of(terms: str) -> list[Message]:
    return [*START, Message(role="user", content=f"{terms} = ?")]


def finished(turn: Turn) -> str:
    """A role's reply; empty if it was truncated, so that replies do not grow until the limit."""
    return "" if turn.stop == "length" else turn.text
