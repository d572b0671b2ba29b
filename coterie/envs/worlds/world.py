"""Multi-agent, multi-turn worlds: the interface that `workflow: multi_turn` drives, in the manner of Gym."""

from __future__ import annotations

import inspect
import math
from collections.abc import Collection, Mapping, Sequence
from numbers import Real
from typing import Any, Protocol

from coterie.errors import UserError
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


class BadWorld(UserError, ValueError):
    """A world lacks a method, or a method returned something other than its interface says."""


class WorldDriver:
    """One interface to both kinds of world: a `MultiAgentWorld`, or a plain `World` with observe, act and done.

    A user writes worlds, so what they return is checked here.
    """

    def __init__(self, world: Any, roles: Sequence[str]) -> None:
        if world is None:
            raise BadWorld("this environment has no world to act on: its open(task) returns None")
        self.name, self.roles = type(world).__name__, roles
        self.world = world if hasattr(world, "step") else _SingleAgent(world)
        self.seen_from = ""  # the method that gave the last observation

    @property
    def speaking(self) -> Collection[str]:
        """The roles whose turn it is."""
        speaking = getattr(self.world, "speaking", self.roles)
        listed = isinstance(speaking, Collection) and not isinstance(speaking, str)
        if not listed or any(role not in self.roles for role in speaking):
            expected = f"a list of this team's roles: {', '.join(self.roles)}"
            raise BadWorld(f"{self.name}.speaking is {speaking!r:.80}, expected {expected}")
        return speaking

    async def reset(self) -> Observation:
        self.seen_from = "reset"
        return await awaited(self.world.reset())

    async def transition(self, role: str, text: str, seen: Observation) -> Observation:
        """The observation within a step, after one of its roles spoke; unchanged if the world has no `transition`."""
        if not hasattr(self.world, "transition"):
            return seen
        self.seen_from = "transition"
        return await awaited(self.world.transition(role, text))

    async def step(self, actions: Mapping[str, str]) -> tuple[Observation, Reward, bool]:
        self.seen_from = "step"
        returned = await awaited(self.world.step(actions))
        if not isinstance(returned, tuple | list) or len(returned) != 3:
            raise BadWorld(f"{self.name}.step returned {_shown(returned)}; it returns (observation, reward, done)")
        seen, reward, done = returned
        rewards = reward if isinstance(reward, Mapping) else {"": reward}
        for role, number in rewards.items():
            require_number(number, f"{self.name}.step", f" of {role}" if role else "")
        if done not in (True, False):
            raise BadWorld(f"{self.name}.step returned done = {done!r:.80}; it is True or False, for all roles")
        return seen, reward, done

    def observation(self, role: str, seen: Observation) -> str:
        """What a role sees of the last observation."""
        text = seen.get(role) if isinstance(seen, Mapping) else seen
        if isinstance(text, str):
            return text
        source = self.world.sees if isinstance(self.world, _SingleAgent) else self.seen_from
        what = f"the observation {_shown(seen)}"
        if isinstance(seen, Mapping):
            what = f"an observation without {role}" if role not in seen else f"{_shown(text)} for {role} to see"
        raise BadWorld(f"{self.name}.{source} returned {what}; an observation is a text for all, or {{role: text}}")


class _SingleAgent:
    """Adapts a `World`, which takes one text at a time. What `act` returns, if anything, is a reward."""

    sees = "observe"  # the method that gives observations

    def __init__(self, world: Any) -> None:
        if missing := [name for name in ("observe", "act") if not hasattr(world, name)]:
            expected = "a world has observe, act and done, or reset and step"
            raise BadWorld(f"{type(world).__name__} has no {' and no '.join(missing)}; {expected}")
        self.world = world

    async def reset(self) -> Observation:
        return await awaited(self.world.observe())

    async def step(self, actions: Mapping[str, str]) -> tuple[Observation, Reward, bool]:
        total = 0.0
        for text in actions.values():
            reward = await awaited(self.world.act(text))
            if reward is not None:
                require_number(reward, f"{type(self.world).__name__}.act")
                total += reward
        return await awaited(self.world.observe()), total, self.world.done


def require_number(reward: Any, method: str, owner: str = "") -> None:
    """Raise BadWorld for a reward that is not a finite number."""
    if not isinstance(reward, Real) or not math.isfinite(reward):
        raise BadWorld(f"{method} returned the reward {reward!r:.80}{owner}; a finite number was expected")


def _shown(value: Any) -> str:
    """A returned value in an error's text."""
    return f"{len(value)} values" if isinstance(value, tuple | list) else f"{value!r:.80}"


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
