"""`coterie chat`: talk to a team in the terminal; replies are streamed, each role in its own colour."""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import rich
from rich.text import Text

from coterie.console import COLORS, visible
from coterie.errors import UserError, did_you_mean
from coterie.files import check_output_path, write_atomic
from coterie.models.reply_stream import ReplyStream
from coterie.rollout.playable import PlayableTeam, answer_text
from coterie.seeds import stable_hash
from coterie.types import Episode, Message, Task

HELP = """  /role NAME    talk to one role alone, which remembers the conversation; /role: to the team again
  /replay       what each role read and said about your last message to the team
  /save FILE    write this chat as JSON lines
  /quit         end; so does Ctrl-D"""


@dataclass
class RolePrinter:
    """Streams the replies of roles that may speak at the same time: one role live, the others when it is done."""

    colors: dict[str, str]
    write: Callable[[Text], None]
    speaking: str | None = None
    waiting: dict[str, list[str | None]] = field(default_factory=dict)

    def on_text(self, role: str, text: str | None) -> None:
        if self.speaking not in (None, role):
            self.waiting.setdefault(role, []).append(text)
            return
        if self.speaking is None:
            self.speaking = role
            self.write(Text(f"{role}: ", style=f"bold {self.colors[role]}"))
        if text is None:
            self.speaking = None
            self.write(Text("\n"))
            self._next()
        else:
            self.write(Text(visible(text), style=self.colors[role]))

    def _next(self) -> None:
        if self.waiting:
            role = next(iter(self.waiting))
            for text in self.waiting.pop(role):
                self.on_text(role, text)


class Chat:
    """One chat: reads lines, runs them, and keeps the conversation."""

    def __init__(self, team: PlayableTeam, seed: int | None = None) -> None:
        self.team = team
        self.seed = secrets.randbits(32) if seed is None else seed
        self.role: str | None = team.own_roles[0] if team.needs_world else None  # None: the team
        self.conversation: list[Message] = []  # with one role
        self.numbers = count()
        self.last: Episode | None = None
        self.rows: list[dict[str, Any]] = []
        self.colors = {role: COLORS[i % len(COLORS)] for i, role in enumerate(team.players)}

    @property
    def prompt(self) -> str:
        return f"{self.role or self.team.name}> "

    def run(self, read: Callable[[str], str]) -> None:
        """Read lines until the end of input."""
        print(f"{self.team.name}, step {self.team.step}: {', '.join(self.team.players)}. /help shows the commands.")
        if self.team.needs_world:
            print(f"The team plays in a world of its environment; you talk to {self.role} alone.")
        while True:
            try:
                line = read(self.prompt).strip()
            except (EOFError, KeyboardInterrupt):
                return
            if line == "/quit":
                return
            try:
                self.answer(line)
            except (UserError, TimeoutError) as error:
                print(error)

    def answer(self, line: str) -> None:
        """Run a command, or send a message."""
        command, _, argument = line.partition(" ")
        commands = {"/role": self.change_role, "/save": self.save, "/replay": self.replay, "/help": self.help}
        if command in commands:
            commands[command](argument.strip())
        elif command.startswith("/"):
            raise UserError(f"there is no command {command}{did_you_mean(command, commands)}\n{HELP}")
        elif line:
            self.speak(line)

    def speak(self, text: str) -> None:
        seed = stable_hash(self.seed, next(self.numbers))
        printer = RolePrinter(self.colors, _write)
        if self.role is None:
            task = Task(f"chat/{len(self.rows)}", text, None)
            self.last = asyncio.run(self.team.play(task, seed=seed, on_text=printer.on_text))
            reply = answer_text(self.last.answer)
            _write(Text("answer: ", style="bold"))
            _write(Text(f"{visible(reply)}\n"))
            turns = [{"role": turn.role, "text": turn.text, "stop": turn.stop} for turn in self.last.turns]
            self.rows.append({"to": self.team.name, "message": text, "turns": turns, "answer": reply, "seed": seed})
        else:
            reply = asyncio.run(self._reply(self.role, text, seed, printer))
            self.rows.append({"to": self.role, "message": text, "answer": reply, "seed": seed})

    async def _reply(self, role: str, text: str, seed: int, printer: RolePrinter) -> str:
        """A role's reply to the whole conversation with it."""
        player = self.team.players[role]
        chat, conversation = self.team.chats[player.policy], [*self.conversation, Message(role="user", content=text)]
        prompt, context = chat.prompt(conversation), self.team.contexts[player.policy]
        if len(prompt) >= context:
            again = f"`/role {role}` begins anew"
            raise UserError(f"the conversation has {len(prompt)} tokens, and the context is {context}; {again}")
        stream = ReplyStream(chat, player.sampling.stop)
        sample = await self.team.engine.sample(
            player.policy, prompt, seed, player.sampling, lambda ids, _: printer.on_text(role, stream.feed(ids))
        )
        printer.on_text(role, stream.finish())
        printer.on_text(role, None)
        reply = chat.text(sample.ids, player.sampling.stop)
        self.conversation = [*conversation, Message(role="assistant", content=reply)]
        return reply

    def change_role(self, name: str) -> None:
        known = self.team.own_roles
        if name and name not in known:
            raise UserError(f"no model plays a role {name!r}; there is {', '.join(known)}{did_you_mean(name, known)}")
        if not name and self.team.needs_world:
            raise UserError("the team plays in a world of its environment; only its roles can be asked")
        self.role, self.conversation = name or None, []

    def replay(self, _: str = "") -> None:
        if self.last is None:
            raise UserError("the team has not answered yet")
        for turn in self.last.turns:
            if turn.api_tokens is not None:  # its prompt has no tokens
                _write(Text(f"{turn.role} said:\n{visible(turn.text)}\n", style=self.colors[turn.role]))
                continue
            prompt = str(self.team.chats[turn.policy].tokenizer.decode(list(turn.prompt_ids)))
            _write(Text(f"{turn.role} read:\n", style=f"bold {self.colors[turn.role]}"))
            _write(Text(f"{visible(prompt)}\n", style="dim"))
            _write(Text(f"{turn.role} said ({turn.stop}):\n", style=f"bold {self.colors[turn.role]}"))
            _write(Text(f"{visible(turn.text)}\n", style=self.colors[turn.role]))

    def save(self, file: str) -> None:
        if not file:
            raise UserError("name a file: /save chat.jsonl")
        check_output_path("/save", Path(file))
        write_atomic(Path(file), "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in self.rows))
        print(f"{len(self.rows)} messages in {file}")

    def help(self, _: str = "") -> None:
        print(HELP)


def _write(text: Text) -> None:
    rich.get_console().print(text, end="", soft_wrap=True)
