"""Nim, a two-player zero-sum game: players take stones in turn, and whoever takes the last one wins."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass

from coterie.envs.worlds.world import WorldEnv
from coterie.limits import Count
from coterie.rewards.answer_extraction import last_number
from coterie.types import Split, Task

RULES = (
    "There is a heap of stones. You and another player take 1 to {most} stones in turn. Whoever takes the last stone "
    "wins. Answer with the number of stones that you take."
)


class Heap:
    """One game. An invalid move loses it."""

    def __init__(self, stones: int, most: int, players: tuple[str, str]) -> None:
        self.stones, self.most, self.players = stones, most, players
        self.speaking: tuple[str, ...] = players[:1]

    def reset(self) -> str:
        return f"{self.stones} stones are left. How many do you take?"

    def step(self, actions: Mapping[str, str]) -> tuple[str, dict[str, float], bool]:
        ((player, text),) = actions.items()
        (other,) = (name for name in self.players if name != player)
        taken = last_number(text)
        if taken is None or taken not in range(1, min(self.most, self.stones) + 1):
            return "That is no move.", {player: -1.0, other: 0.0}, True
        self.stones -= int(taken)
        self.speaking = (other,)
        if self.stones == 0:
            return "The heap is gone.", {player: 1.0, other: -1.0}, True
        return f"{player} took {int(taken)}. {self.reset()}", {player: 0.0, other: 0.0}, False


@dataclass(frozen=True)
class Nim(WorldEnv):
    """Nim for two roles of `workflow: multi_turn`: the winner gets 1, the loser -1; an invalid move -1, the other 0."""

    players: tuple[str, str] = ("first", "second")  # the two roles
    stones: int = 7  # stones in the heap at the start, at most
    most: int = 3  # stones per move, at most
    size: Count = 100  # training games
    test_size: Count = 20  # held-out games

    def tasks(self, split: Split) -> list[Task]:
        draw = random.Random(f"nim/{split}")
        heaps = [draw.randint(self.most, self.stones) for _ in range(self.size if split == "train" else self.test_size)]
        rules = RULES.format(most=self.most)
        return [Task(f"nim/{split}/{i}", rules, None, {"stones": stones}) for i, stones in enumerate(heaps)]

    def open(self, task: Task) -> Heap:
        return Heap(task.meta["stones"], self.most, self.players)
