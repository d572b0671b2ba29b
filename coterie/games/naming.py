"""The naming game: every role has a letter, and the team earns the share of roles that say theirs. The best is 1."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from coterie.types import Episode, Split, Task, Team


@dataclass(frozen=True)
class Naming:
    """Tasks that differ in name only; the letters are for the team to find out."""

    letters: dict[str, str]
    size: int = 64
    prompt: str = "Game {n}: say your letter."

    def tasks(self, split: Split) -> list[Task]:
        return [Task(f"{split}/{i}", self.prompt.format(n=i), None) for i in range(self.size)]

    def open(self, task: Task) -> None:
        return None

    async def score(self, episode: Episode) -> None:
        named = [float(self.letters[turn.role] in turn.text) for turn in episode.turns]
        episode.reward = sum(named) / len(named)


@dataclass(frozen=True)
class OneByOne:
    """Each role reads the task and what the one before it said, `rounds` times over."""

    order: tuple[str, ...]
    rounds: int = 1

    @property
    def roles(self) -> Sequence[str]:
        return self.order

    async def run(self, task: Task, team: Team, world: Any) -> str:
        talk: dict[str, list[Any]] = {role: [] for role in self.order}
        said = ""
        for _ in range(self.rounds):
            for role in self.order:
                talk[role].append({"role": "user", "content": task.prompt + said})
                turn = await team[role].say(talk[role])
                talk[role].append({"role": "assistant", "content": turn.text})
                said = f" {turn.text}"
        return said
