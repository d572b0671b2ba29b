"""Team games in one move: all roles say a letter at once, and a table gives the team's reward. The optimum is 1."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from coterie.types import Episode, Split, Task, Team


@dataclass(frozen=True)
class AtOnce:
    """All roles reply at once; each reads the task and its own name."""

    order: tuple[str, ...]

    @property
    def roles(self) -> Sequence[str]:
        return self.order

    async def run(self, task: Task, team: Team, world: Any) -> dict[str, str]:
        turns = await asyncio.gather(*(team[role].say(f"{task.prompt}{role}") for role in self.order))
        return {role: turn.text for role, turn in zip(self.order, turns, strict=True)}


class OneMove:
    """Base of the one-move games: all tasks are the same empty question, and there is no world."""

    size: int

    def tasks(self, split: Split) -> list[Task]:
        return [Task(f"{split}/{i}", "", None) for i in range(self.size)]

    def open(self, task: Task) -> None:
        return None


@dataclass(frozen=True)
class Additive(OneMove):
    """Each role's letter has a value, and the reward is the sum.

    A role's value does not depend on the other role, so credit that separates the two learns faster.
    """

    values: dict[str, dict[str, float]] = field(
        default_factory=lambda: {
            "left": {"a": 0.6, "b": 0.3, "c": 0.1},
            "right": {"a": 0.0, "b": 0.2, "c": 0.4},
        }
    )
    illegal: float = 0.0  # the value of any other letter
    size: int = 64

    async def score(self, episode: Episode) -> None:
        episode.reward = 0.0
        for turn in episode.turns:
            table = self.values[turn.role]
            episode.reward += table.get(turn.text, self.illegal)


@dataclass(frozen=True)
class Climbing(OneMove):
    """The climbing game (Claus and Boutilier, 1998): the best pair is next to the worst ones, so a role
    that tries its half alone is penalized.

            a     b     c   right
      a    11   −30     0
      b   −30     7     6            divided by 11, so the optimum is 1; an illegal letter counts as the worst pair
      c     0     0     5
    left
    """

    size: int = 64

    async def score(self, episode: Episode) -> None:
        payoff = {"aa": 11, "ac": 0, "bb": 7, "bc": 6, "ca": 0, "cb": 0, "cc": 5}
        pair = "".join(turn.text for turn in sorted(episode.turns, key=lambda turn: turn.role))
        episode.reward = payoff.get(pair, -30) / 11
