"""Multi-agent, multi-turn worlds: the interface that `workflow: multi_turn` drives, in the manner of Gym."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from coterie.types import Episode, Split, Task

Observation = str | Mapping[str, str]  # the same for all roles, or one per role
Reward = float | Mapping[str, float]  # of a step: the team's, or one per role


class MultiAgentWorld(Protocol):
    """A world for several roles. Every method may be async.

    Optional members:
      transition(role, text) -> Observation   after a role spoke: the observation of roles later in the same step
      speaking: Sequence[str]                 whose turn it is; by default all roles, in the workflow's order
      close()                                 called when the episode is over, however it ended
    """

    def reset(self) -> Observation:
        """The first observation."""

    def step(self, actions: Mapping[str, str]) -> tuple[Observation, Reward, bool]:
        """Apply the action of each role; returns observation, reward and done."""


class WorldDriver:
    """One interface to both kinds of world: a `MultiAgentWorld`, or a plain `World` with observe, act and done."""

    def __init__(self, world: Any, roles: Sequence[str]) -> None:
        if world is None:
            raise ValueError("this environment has no world to act on: its open(task) returns None")
        self.world = world if hasattr(world, "step") else _SingleAgent(world)
        self.roles = roles

    @property
    def speaking(self) -> Sequence[str]:
        return getattr(self.world, "speaking", self.roles)

    async def reset(self) -> Observation:
        return await awaited(self.world.reset())

    async def transition(self, role: str, text: str, seen: Observation) -> Observation:
        """The observation within a step, after one of its roles spoke; unchanged if the world has no `transition`."""
        if not hasattr(self.world, "transition"):
            return seen
        return await awaited(self.world.transition(role, text))

    async def step(self, actions: Mapping[str, str]) -> tuple[Observation, Reward, bool]:
        seen, reward, done = await awaited(self.world.step(actions))
        return seen, reward, done


class _SingleAgent:
    """Adapts a `World`, which takes one text at a time. What `act` returns, if anything, is a reward."""

    def __init__(self, world: Any) -> None:
        self.world = world

    async def reset(self) -> Observation:
        return await awaited(self.world.observe())

    async def step(self, actions: Mapping[str, str]) -> tuple[Observation, Reward, bool]:
        reward = 0.0
        for text in actions.values():
            reward += await awaited(self.world.act(text)) or 0.0
        return await awaited(self.world.observe()), reward, self.world.done


class WorldEnv:
    """Base of environments whose worlds return the rewards, step by step; use `reward: native`."""

    def tasks(self, split: Split) -> Sequence[Task]:
        raise NotImplementedError

    def open(self, task: Task) -> Any:
        raise NotImplementedError

    async def score(self, episode: Episode) -> None:
        """Nothing to do: the workflow has recorded the world's rewards."""


async def awaited(value: Any) -> Any:
    """Await the result of a function that may be async."""
    return await value if inspect.isawaitable(value) else value


def observation_of(role: str, seen: Observation) -> str:
    return seen if isinstance(seen, str) else seen[role]
