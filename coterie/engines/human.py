"""A role played by a person at the terminal, in `coterie chat` and `coterie eval`."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import rich
from rich.text import Text

from coterie.console import visible
from coterie.engines.text_player import TextReply
from coterie.errors import StopsRun
from coterie.types import Message, Sampling
from coterie.watchdog import run_in_daemon_thread

_terminal = threading.Lock()  # one question at a time, whoever asks


class SeatLeft(StopsRun, RuntimeError):
    """The person has left: the input has ended."""


class HumanPlayer:
    """Shows the messages of a role and reads its reply: one line, as a model's turn."""

    def __init__(self, name: str, read: Callable[[str], str] = input) -> None:
        self.name, self.read = name, read

    async def reply(self, messages: Sequence[Message], seed: int, sampling: Sampling) -> TextReply:
        return await run_in_daemon_thread(self._ask, messages)

    def _ask(self, messages: Sequence[Message]) -> TextReply:
        with _terminal:
            for message in messages:
                rich.get_console().print(Text(f"{message['role']}: {visible(message['content'])}", style="dim"))
            try:
                return TextReply(self.read(f"{self.name}> "), "end", 0, 0)
            except EOFError as error:
                raise SeatLeft(f"policies.{self.name}: no more input at this seat, where a person plays") from error
