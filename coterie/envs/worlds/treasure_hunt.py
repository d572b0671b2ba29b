"""A cooperative game with asymmetric information: the guide sees the board, the walker moves."""

from __future__ import annotations

import random
import re
from collections.abc import Mapping
from dataclasses import dataclass

from coterie.envs.worlds.world import Observation, WorldEnv
from coterie.limits import Count
from coterie.types import Split, Task

RULES = (
    "A guide and a walker look for a treasure on a board of {size} by {size} fields. The guide sees the board and "
    "tells the walker where to go. The walker hears the guide and answers with one word: north, south, east or west."
)
WAYS = {"north": (0, -1), "south": (0, 1), "east": (1, 0), "west": (-1, 0)}
WAY = re.compile("|".join(WAYS), re.IGNORECASE)
Place = tuple[int, int]  # column, row


class Board:
    """One game. In each step the guide speaks, then the walker, who sees only the guide's message."""

    def __init__(self, size: int, walker: Place, treasure: Place, guide: str, walks: str) -> None:
        self.size, self.walker, self.treasure = size, walker, treasure
        self.guide, self.walks = guide, walks
        self.initial_distance = self.distance

    @property
    def distance(self) -> int:
        return abs(self.walker[0] - self.treasure[0]) + abs(self.walker[1] - self.treasure[1])

    def reset(self) -> Observation:
        places = {self.walker: "W", self.treasure: "T"}
        rows = (" ".join(places.get((x, y), ".") for x in range(self.size)) for y in range(self.size))
        shown = "The board, north is up; W is the walker, T the treasure:\n" + "\n".join(rows)
        return {self.guide: shown, self.walks: ""}

    def transition(self, role: str, text: str) -> Observation:
        return {self.walks: f"The guide says: {text}\nWhere do you go?"}

    def step(self, actions: Mapping[str, str]) -> tuple[Observation, float, bool]:
        """Reward: the change in distance to the treasure, over the distance at the start; 1 in total."""
        before = self.distance
        found = WAY.search(actions[self.walks])
        if found:
            across, down = WAYS[found[0].lower()]
            x, y = self.walker[0] + across, self.walker[1] + down
            self.walker = (min(max(x, 0), self.size - 1), min(max(y, 0), self.size - 1))
        return self.reset(), (before - self.distance) / self.initial_distance, self.distance == 0


@dataclass(frozen=True)
class Hunt(WorldEnv):
    """A treasure hunt for a team of two in `workflow: multi_turn`; the team shares one reward."""

    roles: tuple[str, str] = ("guide", "walker")  # the role that sees the treasure, and the role that walks
    board: int = 3  # fields per side
    size: Count = 100  # training boards
    test_size: Count = 20  # held-out boards

    def __post_init__(self) -> None:
        if self.board < 2:
            raise ValueError(f"board: at least 2, not {self.board}")

    def tasks(self, split: Split) -> list[Task]:
        draw = random.Random(f"hunt/{split}")
        count = self.size if split == "train" else self.test_size
        return [self._task(f"hunt/{split}/{i}", draw) for i in range(count)]

    def open(self, task: Task) -> Board:
        walker, treasure = task.meta["walker"], task.meta["treasure"]
        return Board(self.board, (walker[0], walker[1]), (treasure[0], treasure[1]), *self.roles)

    def _task(self, name: str, draw: random.Random) -> Task:
        fields = [(x, y) for x in range(self.board) for y in range(self.board)]
        walker, treasure = draw.sample(fields, 2)
        meta = {"walker": list(walker), "treasure": list(treasure)}
        return Task(name, RULES.format(size=self.board), None, meta)
