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

_terminal = threading.Lock()  # one prompt at a time, also if a person plays several roles


class InputEnded(StopsRun, RuntimeError):
    """The terminal's input has ended, so the person's role cannot be played any more."""


class HumanPlayer:
    """Prints the messages of a role, and reads one line as its reply."""

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
                raise InputEnded(f"policies.{self.name}: no more input, and a person plays this policy") from error
