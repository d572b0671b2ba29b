"""Worlds that a team acts on over several turns, and environments made of them."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from coterie.types import Episode, Split, Task

Seen = str | Mapping[str, str]  # what everyone sees, or what each role does
Earned = float | Mapping[str, float]  # the team's reward for a step, or each role's own


class Stage(Protocol):
    """A world for several roles: those whose turn it is speak, then time moves on. Every method may be async.

    It may also have
      transition(role, text) -> Seen     after a role spoke: what those see who speak later in the same step
      speaking: Sequence[str]            whose turn it is; everyone's, in the workflow's order, if it does not say
      close()                            called when the episode is over, however it ended
    """

    def reset(self) -> Seen:
        """What is seen at first."""

    def step(self, said: Mapping[str, str]) -> tuple[Seen, Earned, bool]:
        """What is seen after the roles said this, what it earned, and whether that was the end."""


class Staged:
    """Any world, driven in one way: a `Stage`, or a plain `World` with observe, act and done."""

    def __init__(self, world: Any, roles: Sequence[str]) -> None:
        if world is None:
            raise ValueError("this environment has no world to act on: its open(task) gives None")
        self.world = world if hasattr(world, "step") else _Plain(world)  # a user's own object has one or the other
        self.roles = roles

    @property
    def speaking(self) -> Sequence[str]:
        return getattr(self.world, "speaking", self.roles)

    async def reset(self) -> Seen:
        return await awaited(self.world.reset())

    async def transition(self, role: str, text: str, seen: Seen) -> Seen:
        """What is seen within a step, after one of its roles spoke: the same as before, if the world says nothing."""
        if not hasattr(self.world, "transition"):
            return seen
        return await awaited(self.world.transition(role, text))

    async def step(self, said: Mapping[str, str]) -> tuple[Seen, Earned, bool]:
        seen, earned, done = await awaited(self.world.step(said))
        return seen, earned, done


class _Plain:
    """A world that is told one text after the other. What `act` returns, if anything, is a reward."""

    def __init__(self, world: Any) -> None:
        self.world = world

    async def reset(self) -> Seen:
        return await awaited(self.world.observe())

    async def step(self, said: Mapping[str, str]) -> tuple[Seen, Earned, bool]:
        earned = 0.0
        for text in said.values():
            earned += await awaited(self.world.act(text)) or 0.0
        return await awaited(self.world.observe()), earned, self.world.done


class WorldEnv:
    """Tasks whose worlds tell, while they are acted on, what it is worth; `reward: native`."""

    def tasks(self, split: Split) -> Sequence[Task]:
        raise NotImplementedError

    def open(self, task: Task) -> Any:
        raise NotImplementedError

    async def score(self, episode: Episode) -> None:
        """Nothing to add: the workflow has written down what the world gave."""


async def awaited(value: Any) -> Any:
    """What a function gave that may be async."""
    return await value if inspect.isawaitable(value) else value


def seen_by(role: str, seen: Seen) -> str:
    return seen if isinstance(seen, str) else seen[role]
