"""Matching pennies: both say heads or tails at once; the first wins if they are alike, the second if not."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from coterie.games.matrix import OneMove
from coterie.games.model import is_late
from coterie.types import Episode, Task, Team

FIRST, SECOND = "first", "second"
PROMPTS = {FIRST: "f", SECOND: "c"}


@dataclass(frozen=True)
class PenniesTable:
    """Each reads which player it is, `f` or `c`; a letter after `h` is tails, any other heads."""

    @property
    def roles(self) -> Sequence[str]:
        return FIRST, SECOND

    async def run(self, task: Task, team: Team, world: Any) -> str:
        turns = await asyncio.gather(*(team[role].say(PROMPTS[role]) for role in (FIRST, SECOND)))
        return "".join("t" if is_late(turn.text) else "h" for turn in turns)


@dataclass(frozen=True)
class Pennies(OneMove):
    """The same game every time. Winnings are each turn's own reward; the episode's are those of the first."""

    size: int = 8

    async def score(self, episode: Episode) -> None:
        alike = episode.answer[0] == episode.answer[1]
        episode.reward = 1.0 if alike else -1.0
        for turn in episode.turns:
            turn.reward = episode.reward if turn.role == FIRST else -episode.reward


def exploitability(first: float, second: float) -> float:
    """The mean expected winnings of best responses to these probabilities of tails, over both roles; 0 only at ½."""
    return (abs(2 * first - 1) + abs(2 * second - 1)) / 2
