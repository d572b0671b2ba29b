"""Replay buffer of joint turns for the mixer: each is trained on more than once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass
class JointTurns:
    """N joint turns: the messages of all roles in one round. Those of an episode are consecutive."""

    state: Tensor  # [N, D], the joint context when the round began
    actions: Tensor  # [N, R, D], zero where a role has no message
    present: Tensor  # [N, R] bool
    reward: Tensor  # [N], the team's for this round
    returns: Tensor  # [N], the discounted return from this round on
    done: Tensor  # [N] bool, the last of its episode

    def __len__(self) -> int:
        return len(self.reward)

    def each(self, change: Callable[[Tensor], Tensor]) -> JointTurns:
        """Apply a function to every column."""
        return JointTurns(**{name: change(column) for name, column in vars(self).items()})

    def append(self, later: JointTurns) -> JointTurns:
        """These joint turns, then the later ones."""
        return JointTurns(**{name: torch.cat([column, getattr(later, name)]) for name, column in vars(self).items()})


def no_joint_turns(roles: int, features: int) -> JointTurns:
    actions, numbers = torch.zeros(0, roles, features), torch.zeros(0, dtype=torch.float64)
    return JointTurns(torch.zeros(0, features), actions, actions.any(dim=-1), numbers, numbers, numbers.bool())


class ReplayBuffer:
    """The latest `capacity` joint turns; the oldest are evicted first. A round's successor is the next entry."""

    def __init__(self, capacity: int, roles: int, features: int) -> None:
        self.capacity = capacity
        self.entries = no_joint_turns(roles, features)

    def __len__(self) -> int:
        return len(self.entries)

    def add(self, turns: JointTurns) -> None:
        self.entries = self.entries.append(turns).each(lambda column: column[-self.capacity :].clone())

    def sample(self, count: int, generator: torch.Generator) -> tuple[JointTurns, JointTurns]:
        """Random joint turns and the entries after them.

        After an episode's last round the next entry is of another episode: callers mask it by `done`.
        """
        index = torch.randint(len(self.entries), (count,), generator=generator)
        following = (index + 1) % len(self.entries)  # wraps around only at an episode's last round
        return self.entries.each(lambda column: column[index]), self.entries.each(lambda column: column[following])
