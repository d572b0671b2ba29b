"""The workflow of a graph: agents speak in turn, on token ids, and act on environments in between."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from coterie.compat.siirl.env import Observation, Worlds
from coterie.compat.siirl.hooks import PRE, Hooks, Ids
from coterie.limits import Count
from coterie.types import Agent, Task, Team, Turn


@dataclass(frozen=True)
class GraphAgent:
    """One agent: its role, its hooks, and whether it observes the environment."""

    role: str
    obs_with_env: bool = False
    process_path: Path | None = None
    pre_process_kwargs: dict[str, Any] = field(default_factory=dict)
    post_process_kwargs: dict[str, Any] = field(default_factory=dict)
    written: str = ""  # its place, for error messages

    def __post_init__(self) -> None:
        self.hooks.check()

    @property
    def hooks(self) -> Hooks:
        return Hooks(**{f.name: getattr(self, f.name) for f in fields(Hooks)})


@dataclass(frozen=True)
class Graph:
    """Each agent continues the token ids of the agent before it, round after round, until an environment is done or
    `max_assistant_turns` are over. Without `use_all_traj` only each agent's last turn is trained on.
    """

    # the agents in the order they speak; translated from the graph's nodes
    agents: Annotated[tuple[GraphAgent, ...], Field(min_length=1)]
    rewarded: tuple[str, ...] = ()  # the roles whose replies are graded
    rewards_with_env: bool = False  # use the environments' rewards instead of grading replies
    max_assistant_turns: Count = 1  # rounds, at most
    use_all_traj: bool = False  # train on every turn of an agent, not only on its last

    @property
    def roles(self) -> Sequence[str]:
        return [agent.role for agent in self.agents]

    async def run(self, task: Task, team: Team, world: Worlds | None) -> dict[str, Any]:
        state = RoundState(team[self.roles[0]], task, len(self.agents))
        if world is not None:
            state.seen = await world.reset(len(self.agents))
        for _ in range(self.max_assistant_turns):
            if await self._round(state, team, world):
                break
        return self._answers(state.turns)

    async def _round(self, state: RoundState, team: Team, world: Worlds | None) -> bool:
        """One turn per agent; True if an environment is done."""
        actions: list[str] = []
        for place, agent in enumerate(self.agents):
            turn = await state.speak(agent, team[agent.role], place)
            actions.append(state.text)
            if world is not None and agent.role in world:
                step = await world.step(agent.role, actions, len(self.agents))
                state.seen = step.seen
                if self.rewards_with_env:
                    turn.reward = step.reward
                if step.done:
                    return True
        return False

    def _answers(self, turns: Sequence[Turn]) -> dict[str, Any]:
        """The replies to grade: the last one of each rewarded role, or all of them."""
        last = {turn.role: turn for turn in turns}
        for turn in turns:
            if not self.use_all_traj and turn is not last[turn.role]:
                turn.trainable = False
        if self.use_all_traj:
            return {role: [turn.text for turn in turns if turn.role == role] for role in self.rewarded if role in last}
        return {role: last[role].text for role in self.rewarded if role in last}


class RoundState:
    """The shared state of a round: the prompt so far, in the last speaker's token ids, and the observations."""

    def __init__(self, first: Agent, task: Task, agents: int) -> None:
        self.tokenizer = first.chat.tokenizer
        talk = task.meta.get("messages") or [{"role": "user", "content": task.prompt}]
        self.prompt: Ids = list(first.chat.prompt(talk))
        self.seen: list[Observation] = [None] * agents
        self.turns: list[Turn] = []

    @property
    def text(self) -> str:
        """The prompt decoded, with control tokens: the action that environments get."""
        return str(self.tokenizer.decode(self.prompt))

    async def speak(self, agent: GraphAgent, speaker: Agent, place: int) -> Turn:
        tokenizer, hooks = speaker.chat.tokenizer, agent.hooks
        if not same_vocabulary(self.tokenizer, tokenizer):
            self.prompt = encoded(tokenizer, self.text)
        self.tokenizer = tokenizer
        seen, self.seen[place] = self.seen[place] if agent.obs_with_env else None, None
        shown = encoded(tokenizer, seen) if isinstance(seen, str) else seen
        read = hooks.pre(tokenizer, self.prompt, shown)
        if PRE not in hooks.functions:
            self.prompt = read  # a hook's additions are only for this agent
        turn = await speaker.say_ids(read)
        # A replayed reply, of `coterie check` or a counterfactual, is text without ids.
        self.prompt = hooks.post(tokenizer, self.prompt, turn.response_ids or encoded(tokenizer, turn.text))
        self.turns.append(turn)
        return turn


def encoded(tokenizer: Any, text: str) -> Ids:
    return list(tokenizer.encode(text, add_special_tokens=False))


@lru_cache(maxsize=64)
def same_vocabulary(one: Any, other: Any) -> bool:
    """True if both tokenizers have the same vocabulary, so that ids need not be re-encoded."""
    return one is other or one.get_vocab() == other.get_vocab()
