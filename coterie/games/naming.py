"""The naming game: every role has a letter; the reward is the share of roles that say their own. The optimum is 1."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from coterie.types import Episode, Split, Task, Team


@dataclass(frozen=True)
class Naming:
    """Tasks that differ only by number; the team has to find out the letters."""

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
    """Roles speak in order, `rounds` times; each reads the task and the reply before its own."""

    order: tuple[str, ...]
    rounds: int = 1

    @property
    def roles(self) -> Sequence[str]:
        return self.order

    async def run(self, task: Task, team: Team, world: Any) -> str:
        conversations: dict[str, list[Any]] = {role: [] for role in self.order}
        last = ""
        for _ in range(self.rounds):
            for role in self.order:
                conversations[role].append({"role": "user", "content": task.prompt + last})
                turn = await team[role].say(conversations[role])
                conversations[role].append({"role": "assistant", "content": turn.text})
                last = f" {turn.text}"
        return last
