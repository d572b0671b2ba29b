"""The latest joint turns, to learn from more than once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass
class Rounds:
    """N joint turns: what all roles said in one round. Those of an episode stand together, in order."""

    state: Tensor  # [N, D], what was known when the round began
    actions: Tensor  # [N, R, D], zero where a role said nothing
    present: Tensor  # [N, R] bool
    reward: Tensor  # [N], the team's for this round
    returns: Tensor  # [N], and for all that came after it, discounted
    done: Tensor  # [N] bool, the last of its episode

    def __len__(self) -> int:
        return len(self.reward)

    def each(self, change: Callable[[Tensor], Tensor]) -> Rounds:
        """The same change made to every column."""
        return Rounds(**{name: change(column) for name, column in vars(self).items()})

    def then(self, later: Rounds) -> Rounds:
        """These, followed by those."""
        return Rounds(**{name: torch.cat([column, getattr(later, name)]) for name, column in vars(self).items()})


def no_rounds(roles: int, features: int) -> Rounds:
    said, numbers = torch.zeros(0, roles, features), torch.zeros(0, dtype=torch.float64)
    return Rounds(torch.zeros(0, features), said, said.any(dim=-1), numbers, numbers, numbers.bool())


class Buffer:
    """Holds the latest `capacity` joint turns; the oldest go first. A round's successor is the one after it."""

    def __init__(self, capacity: int, roles: int, features: int) -> None:
        self.capacity = capacity
        self.kept = no_rounds(roles, features)

    def __len__(self) -> int:
        return len(self.kept)

    def add(self, rounds: Rounds) -> None:
        self.kept = self.kept.then(rounds).each(lambda column: column[-self.capacity :].clone())

    def draw(self, count: int, generator: torch.Generator) -> tuple[Rounds, Rounds]:
        """Some joint turns at random, and the one after each; after the last of an episode that is another's."""
        index = torch.randint(len(self.kept), (count,), generator=generator)
        following = (index + 1) % len(self.kept)  # the newest round of all is always the last of its episode
        return self.kept.each(lambda column: column[index]), self.kept.each(lambda column: column[following])
