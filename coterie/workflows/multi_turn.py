"""Roles act on a world, turn after turn."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from coterie.envs.worlds.world import Observation, Reward, WorldDriver, observation_of
from coterie.prompts import chat_messages, check, fill
from coterie.types import Message, Outcome, Task, Team, Turn


@dataclass(frozen=True)
class MultiTurn:
    """Each role sees the world, speaks, and sees what came of it, until the world ends or `max_steps` are over.

    Each keeps one growing conversation. What the world gives to the team is the team's reward; what it gives to a
    role is the own reward of that role's latest turn. The answer is what was said last.
    """

    roles: tuple[str, ...] = ("player",)  # the roles that act
    max_steps: int = 8  # steps of the world, at most
    together: bool = False  # roles act at the same time; else each sees the action before its own
    prompt: str = "{question}\n\n{observation}"  # the first prompt; may use {observation}
    systems: dict[str, str] = field(default_factory=dict)  # system messages by role

    def __post_init__(self) -> None:
        check(self.prompt, ["question", "observation"], "prompt")
        for role in self.systems:
            if role not in self.roles:
                raise ValueError(f"systems.{role}: no such role; there are {', '.join(self.roles)}")
        if self.max_steps < 1:
            raise ValueError(f"max_steps: at least 1, not {self.max_steps}")

    async def run(self, task: Task, team: Team, world: Any) -> Outcome:
        stage, talks = WorldDriver(world, self.roles), Talks(self, task, team)
        seen, done, steps, total = await stage.reset(), False, 0, 0.0
        while not done and steps < self.max_steps:
            said = await (self._at_once if self.together else self._in_turn)(stage, talks, seen)
            seen, earned, done = await stage.step(said)
            total += talks.reward(earned)
            steps += 1
        return Outcome(talks.last, {"steps": steps, "finished": float(done)}, reward=total)

    async def _at_once(self, stage: WorldDriver, talks: Talks, seen: Observation) -> dict[str, str]:
        roles = stage.speaking
        return dict(zip(roles, await asyncio.gather(*(talks.say(role, seen) for role in roles)), strict=True))

    async def _in_turn(self, stage: WorldDriver, talks: Talks, seen: Observation) -> dict[str, str]:
        said: dict[str, str] = {}
        for role in stage.speaking:
            if said:
                before = list(said)[-1]
                seen = await stage.transition(before, said[before], seen)
            said[role] = await talks.say(role, seen)
        return said


class Talks:
    """What each role has seen and said so far in one episode."""

    def __init__(self, workflow: MultiTurn, task: Task, team: Team) -> None:
        self.workflow, self.task, self.team = workflow, task, team
        self.talks: dict[str, list[Message]] = {}
        self.latest: dict[str, Turn] = {}
        self.last = ""

    async def say(self, role: str, seen: Observation) -> str:
        observation = observation_of(role, seen)
        if role in self.talks:
            self.talks[role].append(Message(role="user", content=observation))
        else:
            asked = fill(self.workflow.prompt, {"question": self.task.prompt, "observation": observation})
            self.talks[role] = chat_messages(asked, self.workflow.systems.get(role))
        self.latest[role] = turn = await self.team[role].say(list(self.talks[role]))
        self.talks[role].append(Message(role="assistant", content=turn.text))
        self.last = turn.text
        return turn.text

    def reward(self, earned: Reward) -> float:
        """Give roles what is theirs; what is the team's is returned."""
        if not isinstance(earned, Mapping):
            return earned
        for role, reward in earned.items():
            if role not in self.workflow.roles:
                raise ValueError(f"the world rewards {role!r}; this team has {', '.join(self.workflow.roles)}")
            if role in self.latest:  # who has not spoken yet cannot have earned it
                self.latest[role].reward = (self.latest[role].reward or 0.0) + reward
        return 0.0
