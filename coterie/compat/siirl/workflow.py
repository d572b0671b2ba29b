"""The workflow of a graph: agents speak in turn, on token ids, and act on environments in between."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from coterie.compat.siirl.conversations import Conversations, Speaker
from coterie.compat.siirl.env import Worlds
from coterie.compat.siirl.hooks import Hooks
from coterie.limits import Count
from coterie.types import Outcome, Task, Team, Turn


@dataclass(frozen=True)
class GraphAgent:
    """One agent: its role, whose replies it reads, its hooks, and whether it observes the environment."""

    role: str
    obs_with_env: bool = False
    process_path: Path | None = None
    pre_process_kwargs: dict[str, Any] = field(default_factory=dict)
    post_process_kwargs: dict[str, Any] = field(default_factory=dict)
    written: str = ""  # its place, for error messages
    dependencies: tuple[str, ...] | None = None  # the roles whose replies it reads; null: the agent before it

    def __post_init__(self) -> None:
        self.hooks.check()

    @property
    def hooks(self) -> Hooks:
        return Hooks(**{f.name: getattr(self, f.name) for f in fields(Hooks)})


@dataclass(frozen=True)
class Graph:
    """Each agent continues the token ids of the agents it depends on, round after round, until an environment is done
    or `max_assistant_turns` are over. Without `use_all_traj` only each agent's last turn is trained on.
    """

    # the agents in the order they speak; translated from the graph's nodes
    agents: Annotated[tuple[GraphAgent, ...], Field(min_length=1)]
    rewarded: tuple[str, ...] = ()  # the roles whose replies are graded
    rewards_with_env: bool = False  # use the environments' rewards instead of grading replies
    max_assistant_turns: Count = 1  # rounds, at most
    use_all_traj: bool = False  # train on every turn of an agent, not only on its last
    prompt_length: Count | None = None  # tokens of a prompt; longer ones are truncated at the end; null: no limit

    @property
    def roles(self) -> Sequence[str]:
        return [agent.role for agent in self.agents]

    async def run(self, task: Task, team: Team, world: Worlds | None) -> Outcome:
        talk = Conversations(self._speakers(team), task, self.prompt_length)
        if world is not None:
            talk.seen = await world.reset(len(self.agents))
        for number in range(self.max_assistant_turns):
            if await self._round(number, talk, world):
                break
        cut = {} if self.prompt_length is None else {"prompts_truncated": talk.truncated / len(talk.turns)}
        return Outcome(self._answers(talk.turns), cut)

    def _speakers(self, team: Team) -> list[Speaker]:
        before = [(), *((agent.role,) for agent in self.agents)]
        reads = [before[i] if one.dependencies is None else one.dependencies for i, one in enumerate(self.agents)]
        return [
            Speaker(agent.role, team[agent.role], agent.hooks, reads[i], agent.obs_with_env)
            for i, agent in enumerate(self.agents)
        ]

    async def _round(self, number: int, talk: Conversations, world: Worlds | None) -> bool:
        """One turn per agent; True if an environment is done."""
        for place, agent in enumerate(self.agents):
            turn = await talk.speak(place, number)
            if world is not None and agent.role in world:
                actions = talk.actions(place)
                step = await world.step(agent.role, actions, len(self.agents))
                if agent.obs_with_env:
                    talk.observe(place, actions, step.seen)
                if self.rewards_with_env:
                    turn.reward = step.reward
                if step.done:
                    return True
        return False

    def _answers(self, turns: Sequence[Turn]) -> Mapping[str, Any]:
        """The replies to grade: the last one of each rewarded role, or all of them."""
        last = {turn.role: turn for turn in turns}
        for turn in turns:
            if not self.use_all_traj and turn is not last[turn.role]:
                turn.trainable = False
        if self.use_all_traj:
            return {role: [turn.text for turn in turns if turn.role == role] for role in self.rewarded if role in last}
        return {role: last[role].text for role in self.rewarded if role in last}
