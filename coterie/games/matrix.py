"""Team games in one move: everyone says a letter at once, and a table says what the team earns. The best is 1."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from coterie.types import Episode, Split, Task, Team


@dataclass(frozen=True)
class AtOnce:
    """All roles speak at once; each reads the task and who it is."""

    order: tuple[str, ...]

    @property
    def roles(self) -> Sequence[str]:
        return self.order

    async def run(self, task: Task, team: Team, world: Any) -> dict[str, str]:
        turns = await asyncio.gather(*(team[role].say(f"{task.prompt}{role}") for role in self.order))
        return {role: turn.text for role, turn in zip(self.order, turns, strict=True)}


class _OneMove:
    """Tasks of a game that is the same every time."""

    size: int

    def tasks(self, split: Split) -> list[Task]:
        return [Task(f"{split}/{i}", "", None) for i in range(self.size)]

    def open(self, task: Task) -> None:
        return None


@dataclass(frozen=True)
class Additive(_OneMove):
    """Each role's letter is worth something by itself, and the team earns the sum.

    What a role earns does not depend on the other, so credit that tells the two apart learns faster.
    """

    worth: dict[str, dict[str, float]] = field(
        default_factory=lambda: {
            "left": {"a": 0.6, "b": 0.3, "c": 0.1},
            "right": {"a": 0.0, "b": 0.2, "c": 0.4},
        }
    )
    illegal: float = 0.0  # what any other letter is worth
    size: int = 64

    async def score(self, episode: Episode) -> None:
        episode.reward = 0.0
        for turn in episode.turns:
            table = self.worth[turn.role]
            episode.reward += table.get(turn.text, self.illegal)


@dataclass(frozen=True)
class Climbing(_OneMove):
    """The climbing game (Claus and Boutilier, 1998): the best pair of letters is a trap for whoever tries half of it.

            a     b     c   right
      a    11   −30     0
      b   −30     7     6            over 11, so that the best is 1; an illegal letter earns as the worst pair
      c     0     0     5
    left
    """

    size: int = 64

    async def score(self, episode: Episode) -> None:
        payoff = {"aa": 11, "ac": 0, "bb": 7, "bc": 6, "ca": 0, "cb": 0, "cc": 5}
        pair = "".join(turn.text for turn in sorted(episode.turns, key=lambda turn: turn.role))
        episode.reward = payoff.get(pair, -30) / 11
