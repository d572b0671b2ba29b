"""Tasks in siiRL's Parquet layout, and environment classes in siiRL's form (`reset`, `step`) as an episode's world."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite
from numbers import Real
from pathlib import Path
from typing import Any

from coterie.compat.siirl.imports import runs_programs, siirl_file
from coterie.config.problems import ConfigError
from coterie.data.row import Raw, other_fields
from coterie.envs.rows import Rows
from coterie.errors import did_you_mean
from coterie.rewards import Grader
from coterie.types import Episode, Task, is_correct
from coterie.watchdog import run_in_daemon_thread

# Text or token ids, the same for all agents or a list with one each; None: nothing to observe.
Observation = str | list[int] | None


class WorldError(ValueError):
    """An environment returned something other than (obs, reward, done)."""


@dataclass(frozen=True)
class Step:
    """The result of the agents' actions."""

    seen: list[Observation]  # by agent, in their order
    reward: float
    done: bool


def world_class(name: str) -> Callable[[], Any]:
    """The environment class that `file.py:Class` names; a ValueError if it cannot be used."""
    path, colon, attribute = name.rpartition(":")
    if not colon or not path.endswith(".py"):
        raise ValueError(f"bad env_path: {name!r} is not of the form file.py:Class")
    if not Path(path).is_file():
        raise ValueError(f"bad env_path: there is no file {path}")
    try:
        own = vars(siirl_file(Path(path)))
    except ConfigError as error:
        raise ValueError(f"bad env_path: {error}") from error
    if attribute not in own:
        raise ValueError(f"bad env_path: {path} has no {attribute}{did_you_mean(attribute, own)}")
    found: Callable[[], Any] = own[attribute]
    if not inspect.isclass(found) or not callable(getattr(found, "step", None)):
        raise ValueError(f"bad env_path: {name} is no class with a method step(actions, ground_truth)")
    return found


class Worlds:
    """The environments of one episode: one instance per agent that has an env_path."""

    def __init__(self, classes: Mapping[str, str], truth: Any) -> None:
        self.names = classes
        self.truth = truth
        self.instances = {role: world_class(name)() for role, name in classes.items()}

    def __contains__(self, role: object) -> bool:
        return role in self.instances

    async def reset(self, agents: int) -> list[Observation]:
        """The first observations; of several environments the last one that returns any."""
        seen: list[Observation] = [None] * agents
        for role, world in self.instances.items():
            if callable(getattr(world, "reset", None)):
                observation = await _called(world.reset)
                seen = seen if observation is None else self._by_agent(role, observation, agents, agents)
        return seen

    async def step(self, role: str, actions: Sequence[str], agents: int) -> Step:
        """Step this agent's environment with all actions of the round so far."""
        observation, reward, done = await self._answer(role, actions)
        return Step(self._by_agent(role, observation, len(actions), agents), reward, done)

    async def reward_of(self, answer: str) -> float:
        """The reward of a single answer."""
        role = list(self.instances)[-1]
        if callable(getattr(self.instances[role], "reset", None)):
            await _called(self.instances[role].reset)
        return (await self._answer(role, [answer]))[1]

    async def _answer(self, role: str, actions: Sequence[str]) -> tuple[Any, float, bool]:
        result = await _called(self.instances[role].step, actions=list(actions), ground_truth=self.truth)
        if not isinstance(result, tuple | list) or len(result) != 3:
            raise WorldError(f"{self._who(role)} returned {result!r:.80}, not (obs, reward, done)")
        observation, reward, done = result
        if not isinstance(reward, Real) or not isfinite(reward):
            raise WorldError(f"{self._who(role)} gave the reward {reward!r:.80}; a reward is a finite number")
        return observation, float(reward), bool(done)

    async def close(self) -> None:
        for world in self.instances.values():
            if callable(getattr(world, "close", None)):
                await _called(world.close)

    def _by_agent(self, role: str, observation: Any, acted: int, agents: int) -> list[Observation]:
        if observation is None or isinstance(observation, str) or _are_ids(observation):
            return [observation] * agents
        each = observation if isinstance(observation, list | tuple) else [object()]
        if any(one is not None and not isinstance(one, str) and not _are_ids(one) for one in each):
            raise WorldError(f"{self._who(role)} showed {observation!r:.80}; an observation is text or token ids")
        if len(each) not in (acted, agents):
            raise WorldError(f"{self._who(role)} showed {len(each)} observations to {agents} agents")
        return [*each, *[None] * (agents - len(each))]

    def _who(self, role: str) -> str:
        return f"{role}: the environment {self.names[role]}"


def _are_ids(value: Any) -> bool:
    return isinstance(value, list) and all(type(id) is int for id in value)


async def _called(function: Callable[..., Any], **arguments: Any) -> Any:
    """Call a coroutine, or a plain function in a thread, so that it does not block the event loop."""
    if inspect.iscoroutinefunction(function):
        return await function(**arguments)
    value = await run_in_daemon_thread(function, **arguments)
    return await value if inspect.isawaitable(value) else value


@dataclass(frozen=True)
class GraphTasks(Rows):
    """Rows as verl and siiRL have them: `prompt` is a list of messages, `reward_model.ground_truth` the answer.

    Other rows are read as by `rows`. The config's reward grades answers.
    """

    prompt_key: str = "prompt"  # the name of the field with the messages
    worlds: dict[str, str] = field(default_factory=dict)  # by role: the environment it acts on, file.py:Class

    def __post_init__(self) -> None:
        for role, name in self.worlds.items():
            try:
                world_class(name)
            except ValueError as error:
                raise ValueError(f'worlds."{role}": {error}') from error

    @property
    def needs_sandbox(self) -> bool:
        files = [Path(name.rpartition(":")[0]) for name in self.worlds.values()]
        return super().needs_sandbox or any(runs_programs(siirl_file(file)) for file in files)

    def open(self, task: Task) -> Worlds | None:
        return Worlds(self.worlds, self.reference(task)) if self.worlds else None

    def _task(self, path: Path, number: int, raw: Raw) -> Task:
        judged = raw.get("reward_model")
        if self.prompt_key not in raw or not isinstance(judged, Mapping):
            return super()._task(path, number, raw)
        if "ground_truth" not in judged:
            raise ValueError(f"{path}, row {number}: reward_model has no ground_truth; it has {', '.join(judged)}")
        talk = _messages(raw[self.prompt_key], f"{path}, row {number}: {self.prompt_key}")
        meta = other_fields(raw, self.prompt_key, "reward_model") | {"messages": talk}
        return Task(f"{path.stem}/{number}", talk[-1]["content"], judged["ground_truth"], meta)


@dataclass(frozen=True)
class GraphEnv(GraphTasks):
    """Like `graph`, but rewards come from the environments' `step`: use `reward: native`."""

    async def score(self, episode: Episode) -> None:
        """The last reward of the environments; if they gave none, a fresh environment grades the answer."""
        rewards = [turn.reward for turn in episode.turns if turn.reward is not None]
        if not rewards:
            await super().score(episode)
            return
        episode.reward = rewards[-1]
        episode.metrics["accuracy"] = float(is_correct(episode.reward))

    def native(self, deadline: float) -> Grader:
        if not self.worlds:
            raise ValueError("reward native: no agent has an environment")
        return WorldGrader("native", {"name": list(self.worlds.values())[-1]}, deadline)


@dataclass(frozen=True)
class WorldGrader(Grader):
    """Grades a single answer with a fresh environment."""

    async def __call__(self, answer: Any, truth: Any, task: Task | None = None) -> float:
        worlds = Worlds({"answer": self.options["name"]}, truth)
        try:
            return await worlds.reward_of(str(answer))
        finally:
            await worlds.close()


def _messages(prompt: Any, where: str) -> list[dict[str, str]]:
    if isinstance(prompt, str):
        return [{"role": "user", "content": prompt}]
    if not isinstance(prompt, list) or not prompt or not all(_is_message(one) for one in prompt):
        raise ValueError(f"{where} is {prompt!r:.60}, neither text nor a list of messages with role and content")
    return [{"role": one["role"], "content": one["content"]} for one in prompt]


def _is_message(one: Any) -> bool:
    return isinstance(one, Mapping) and all(isinstance(one.get(key), str) for key in ("role", "content"))
