"""`coterie chat`: a team in the terminal."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from rich.text import Text
from typer.testing import CliRunner

from coterie.cli.app import app
from coterie.cli.chat import Chat, RolePrinter
from coterie.console import visible
from coterie.training.build import for_inference
from coterie.types import Task, Team
from tests.forked import Python
from tests.hangs import HANG
from tests.runs import naming_config, trained


@pytest.fixture(scope="module")
def run(model_folder: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "pair"
    trained(naming_config(model_folder("llama"), steps=1, name="pair"), folder)
    return folder


def lines(*typed: str) -> Callable[[str], str]:
    waiting: Iterator[str] = iter(typed)

    def read(prompt: str) -> str:
        try:
            return next(waiting)
        except StopIteration:
            raise EOFError from None

    return read


def test_a_chat_shows_each_role_and_can_be_replayed_and_saved(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    saved = tmp_path / "chat.jsonl"
    chat = Chat(for_inference(run), seed=1)
    chat.run(
        lines("Say it.", "/replay", "/role left", "Hello", "And now?", "/rol", "/role lefd", f"/save {saved}", "/role")
    )
    chat.run(lines(f"/save {tmp_path}/nowhere/chat.jsonl"))
    shown = capsys.readouterr().out
    first, second, third = map(json.loads, saved.read_text().splitlines())
    assert [turn["role"] for turn in first["turns"]] == ["left", "right"] and first["message"] == "Say it."
    squeezed = "".join(shown.split())  # a terminal expands tabs
    assert all("".join(visible(turn["text"]).split()) in squeezed for turn in first["turns"])
    assert "left read:\n" in shown
    assert second["to"] == third["to"] == "left" and "did you mean /role" in shown and "did you mean left" in shown
    assert "nowhere does not exist" in shown and chat.prompt == "pair> "
    again = Chat(for_inference(run), seed=1)
    again.run(lines("Say it."))
    assert again.rows[0] == first  # the seed repeats a chat


def test_a_chat_in_a_terminal_has_colours_and_obeys_its_commands(run: Path, tmp_path: Path) -> None:
    """A real terminal: what is typed goes through its line discipline, Ctrl-D ends the chat."""
    keyboard, terminal = pty.openpty()
    settings = os.environ | {"TERM": "xterm-256color", "COLUMNS": "100"}
    words = ["-m", "coterie", "chat", str(run), "--seed", "1"]
    process = Python(words, tmp_path, settings, dict.fromkeys((0, 1, 2), terminal))
    os.close(terminal)
    seen = until(keyboard, "pair> ")
    said = {}
    for typed, prompt in (
        ("Say it.", "pair> "),
        ("/replay", "pair> "),
        ("/role left", "left> "),
        ("Hello", "left> "),
        ("/save chat.jsonl", "left> "),
        ("/role", "pair> "),
    ):
        os.write(keyboard, f"{typed}\n".encode())
        said[typed] = until(keyboard, f"{prompt}")
    os.write(keyboard, b"\x04")
    assert process.wait(HANG) == 0 and "step 1: left, right" in seen
    colours = set(re.findall(r"\x1b\[1;(\d+)m(left|right): ", said["Say it."]))
    assert {role for _, role in colours} == {"left", "right"} and len({colour for colour, _ in colours}) == 2
    assert (
        "left read:" in said["/replay"]
        and "right said" in said["/replay"]
        and "2 messages in" in said["/save chat.jsonl"]
    )
    rows = [json.loads(line) for line in (tmp_path / "chat.jsonl").read_text().splitlines()]
    assert [row["to"] for row in rows] == ["pair", "left"]


def test_a_person_may_play_a_role(model_folder: Callable[[str], Path], tmp_path: Path) -> None:
    tree = naming_config(model_folder("llama"), name="pair")
    tree["policies"]["right"] = {"human": True}
    (tmp_path / "c.yaml").write_text(json.dumps(tree))
    done = CliRunner().invoke(app, ["chat", str(tmp_path / "c.yaml")], input="Say it.\nmy own words\n")
    assert done.exit_code == 0 and "right> " in done.output
    assert "right: my own words" in done.output and "user: Say it." in done.output


class Unwilling:
    roles = ("left", "right")

    async def run(self, task: Task, team: Team, world: object) -> str:
        raise ValueError("only sums")


def test_a_workflow_that_raises_does_not_end_the_chat(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    team = replace(for_inference(run), workflow=Unwilling())
    Chat(team).run(lines("hello", "/help"))
    shown = capsys.readouterr().out
    assert "failed on this message: ValueError: only sums (test_chat_command.py, line " in shown and "/replay" in shown


def until(terminal: int, prompt: str) -> str:
    """What the terminal shows until a prompt stands at the beginning of its last line."""
    seen, end = "", time.monotonic() + HANG
    while not seen.rpartition("\n")[2].endswith(prompt):
        assert time.monotonic() < end, seen
        if select.select([terminal], [], [], 1)[0]:
            seen += os.read(terminal, 4096).decode()
    return seen


def test_roles_that_speak_at_once_do_not_mix_their_words() -> None:
    shown: list[str] = []
    printer = RolePrinter({"a": "red", "b": "blue"}, lambda text: shown.append(Text.assemble(text).plain))
    for role, text in (("a", "1"), ("b", "x"), ("a", "2"), ("b", None), ("a", None)):
        printer.on_text(role, text)
    assert "".join(shown) == "a: 12\nb: x\n"


def test_what_could_forge_the_terminal_is_escaped() -> None:
    assert visible("a\x1b[2J\u202eb\r\nc") == "a\\x1b[2J\\u202eb\\r\nc"
