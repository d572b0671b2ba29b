"""Multi-turn episodes: roles act on a world step by step."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from coterie.envs.worlds.world import BadWorld, Observation, Reward, WorldDriver
from coterie.prompts import chat_messages, check, check_counts, fill
from coterie.types import Message, Outcome, Task, Team, Turn


@dataclass(frozen=True)
class MultiTurn:
    """Each role observes the world and acts, until the world is done or for `max_steps`.

    Each role has one growing conversation. A reward for the team is added to the episode's reward, a reward for a role
    to that of its latest turn. The last text is the answer.
    """

    needs_world: ClassVar[bool] = True

    roles: tuple[str, ...] = ("player",)  # the roles that act
    max_steps: int = 8  # steps of the world, at most
    together: bool = False  # roles act simultaneously; otherwise in order, and each sees the action before its own
    prompt: str = "{question}\n\n{observation}"  # the first prompt; may use {observation}
    systems: dict[str, str] = field(default_factory=dict)  # system messages by role

    def __post_init__(self) -> None:
        check(self.prompt, ["question", "observation"], "prompt")
        for role in self.systems:
            if role not in self.roles:
                raise ValueError(f"systems.{role}: no such role; there are {', '.join(self.roles)}")
        check_counts(self, "max_steps")

    async def run(self, task: Task, team: Team, world: Any) -> Outcome:
        driver, conversations = WorldDriver(world, self.roles), Conversations(self, task, team)
        seen, done, steps, total = await driver.reset(), False, 0, 0.0
        while not done and steps < self.max_steps:
            actions = await (self._at_once if self.together else self._in_turn)(driver, conversations, seen)
            seen, reward, done = await driver.step(actions)
            total += conversations.reward(reward)
            steps += 1
        return Outcome(conversations.last, {"steps": steps, "finished": float(done)}, reward=total)

    async def _at_once(self, driver: WorldDriver, conversations: Conversations, seen: Observation) -> dict[str, str]:
        roles = driver.speaking
        texts = await asyncio.gather(*(conversations.say(role, driver.observation(role, seen)) for role in roles))
        return dict(zip(roles, texts, strict=True))

    async def _in_turn(self, driver: WorldDriver, conversations: Conversations, seen: Observation) -> dict[str, str]:
        actions: dict[str, str] = {}
        for role in driver.speaking:
            if actions:
                before = list(actions)[-1]
                seen = await driver.transition(before, actions[before], seen)
            actions[role] = await conversations.say(role, driver.observation(role, seen))
        return actions


class Conversations:
    """The conversations of all roles in one episode."""

    def __init__(self, workflow: MultiTurn, task: Task, team: Team) -> None:
        self.workflow, self.task, self.team = workflow, task, team
        self.messages: dict[str, list[Message]] = {}
        self.latest: dict[str, Turn] = {}
        self.last = ""

    async def say(self, role: str, observation: str) -> str:
        if role in self.messages:
            self.messages[role].append(Message(role="user", content=observation))
        else:
            prompt = fill(self.workflow.prompt, {"question": self.task.prompt, "observation": observation})
            self.messages[role] = chat_messages(prompt, self.workflow.systems.get(role))
        self.latest[role] = turn = await self.team[role].say(list(self.messages[role]))
        self.messages[role].append(Message(role="assistant", content=turn.text))
        self.last = turn.text
        return turn.text

    def reward(self, reward: Reward) -> float:
        """Add rewards of roles to their latest turns; returns the team's reward."""
        if not isinstance(reward, Mapping):
            return reward
        for role, own in reward.items():
            if role not in self.workflow.roles:
                raise BadWorld(f"the world rewards {role!r}; this team has {', '.join(self.workflow.roles)}")
            if role in self.latest:  # a role without a turn gets no reward
                self.latest[role].reward = (self.latest[role].reward or 0.0) + own
        return 0.0
