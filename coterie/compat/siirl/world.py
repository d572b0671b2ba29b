"""An environment class in siiRL's form, as the world of one episode."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from numbers import Real
from pathlib import Path
from typing import Any

from coterie.config.problems import ConfigError, did_you_mean
from coterie.config.registry import user_module
from coterie.watchdog import run_in_daemon_thread

# Text or token ids; of all agents or, in a list, of each; None where there is nothing to see.
Observation = str | list[int] | None


class WorldError(ValueError):
    """An environment that gives something else than (obs, reward, done)."""


@dataclass(frozen=True)
class Step:
    """What came of the agents' actions."""

    seen: list[Observation]  # by agent, in their order
    reward: float
    done: bool


def world_class(name: str) -> Callable[[], Any]:
    """The class that `file.py:Class` names; a ValueError says what is wrong with it."""
    path, colon, attribute = name.rpartition(":")
    if not colon or not path.endswith(".py"):
        raise ValueError(f"bad env_path: {name!r} is not of the form file.py:Class")
    if not Path(path).is_file():
        raise ValueError(f"bad env_path: there is no file {path}")
    try:
        own = vars(user_module(Path(path).resolve()))
    except ConfigError as error:
        raise ValueError(f"bad env_path: {error}") from error
    if attribute not in own:
        raise ValueError(f"bad env_path: {path} has no {attribute}{did_you_mean(attribute, own)}")
    found: Callable[[], Any] = own[attribute]
    if not inspect.isclass(found) or not callable(getattr(found, "step", None)):
        raise ValueError(f"bad env_path: {name} is no class with a method step(actions, ground_truth)")
    return found


class Worlds:
    """The environments of one episode, an instance for each agent that has one."""

    def __init__(self, classes: Mapping[str, str], truth: Any) -> None:
        self.names = classes
        self.truth = truth
        self.instances = {role: world_class(name)() for role, name in classes.items()}

    def __contains__(self, role: object) -> bool:
        return role in self.instances

    async def reset(self, agents: int) -> list[Observation]:
        """What the agents see before anyone has spoken; of several environments the last one that shows something."""
        seen: list[Observation] = [None] * agents
        for role, world in self.instances.items():
            if callable(getattr(world, "reset", None)):
                shown = await _called(world.reset)
                seen = seen if shown is None else self._by_agent(role, shown, agents, agents)
        return seen

    async def step(self, role: str, actions: Sequence[str], agents: int) -> Step:
        """Let the environment of this agent answer to what all have done in this round so far."""
        shown, reward, done = await self._answer(role, actions)
        return Step(self._by_agent(role, shown, len(actions), agents), reward, done)

    async def worth(self, answer: str) -> float:
        """What an environment gives for an answer alone, whatever it shows to whom."""
        role = list(self.instances)[-1]
        if callable(getattr(self.instances[role], "reset", None)):
            await _called(self.instances[role].reset)
        return (await self._answer(role, [answer]))[1]

    async def _answer(self, role: str, actions: Sequence[str]) -> tuple[Any, float, bool]:
        came = await _called(self.instances[role].step, actions=list(actions), ground_truth=self.truth)
        if not isinstance(came, tuple | list) or len(came) != 3:
            raise WorldError(f"{self._who(role)} returned {came!r:.80}, not (obs, reward, done)")
        shown, reward, done = came
        if not isinstance(reward, Real) or not isfinite(reward):
            raise WorldError(f"{self._who(role)} gave the reward {reward!r:.80}; a reward is a finite number")
        return shown, float(reward), bool(done)

    async def close(self) -> None:
        for world in self.instances.values():
            if callable(getattr(world, "close", None)):
                await _called(world.close)

    def _by_agent(self, role: str, shown: Any, acted: int, agents: int) -> list[Observation]:
        if shown is None or isinstance(shown, str) or _are_ids(shown):
            return [shown] * agents
        each = shown if isinstance(shown, list | tuple) else [object()]
        if any(one is not None and not isinstance(one, str) and not _are_ids(one) for one in each):
            raise WorldError(f"{self._who(role)} showed {shown!r:.80}; an observation is text or token ids")
        if len(each) not in (acted, agents):
            raise WorldError(f"{self._who(role)} showed {len(each)} observations to {agents} agents")
        return [*each, *[None] * (agents - len(each))]

    def _who(self, role: str) -> str:
        return f"{role}: the environment {self.names[role]}"


def _are_ids(value: Any) -> bool:
    return isinstance(value, list) and all(type(id) is int for id in value)


async def _called(function: Callable[..., Any], **arguments: Any) -> Any:
    """A plain function runs in a thread, so that the others go on; a thread cannot be killed, only left alone."""
    if inspect.iscoroutinefunction(function):
        return await function(**arguments)
    value = await run_in_daemon_thread(function, **arguments)
    return await value if inspect.isawaitable(value) else value
