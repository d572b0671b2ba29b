"""PettingZoo games with the agent-environment-cycle (AEC) API, in which agents act one after another."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from coterie.envs.worlds.world import WorldEnv
from coterie.limits import Count
from coterie.rewards.answer_extraction import last_number
from coterie.rewards.reward_function import load
from coterie.types import Split, Task

MAX_ACTION = 2**31  # below it, spaces compare actions without overflow


class AecWorld:
    """One game. The agent whose turn it is observes and answers; every agent gets the game's rewards.

    A text action space takes the answer as it is, a discrete one the last number in it. An invalid action, or one that
    the game's action mask forbids, ends the game with the reward `illegal` for its agent.
    """

    def __init__(self, game: Any, seed: int, illegal: float) -> None:
        self.game, self.seed, self.illegal = game, seed, illegal

    @property
    def speaking(self) -> tuple[str, ...]:
        return (self.game.agent_selection,)

    def reset(self) -> str:
        self.game.reset(seed=self.seed)
        return self._observation()

    def step(self, actions: Mapping[str, str]) -> tuple[str, dict[str, float], bool]:
        ((agent, text),) = actions.items()
        action = self._action(agent, text)
        if action is None:
            return "That is no action.", {agent: self.illegal}, True
        rewards = dict.fromkeys(self.game.possible_agents, 0.0)
        self._act(action, rewards)
        while self.game.agents and self._over(self.game.agent_selection):
            self._act(None, rewards)  # AEC games expect None from agents that are out
        done = not self.game.agents
        return "" if done else self._observation(), rewards, done

    def close(self) -> None:
        self.game.close()

    def _act(self, action: Any, rewards: dict[str, float]) -> None:
        self.game.step(action)
        for agent, reward in self.game.rewards.items():
            rewards[agent] += float(reward)

    def _over(self, agent: str) -> bool:
        return bool(self.game.terminations[agent] or self.game.truncations[agent])

    def _observation(self) -> str:
        seen = self.game.observe(self.game.agent_selection)
        return str(seen["observation"] if isinstance(seen, Mapping) and "observation" in seen else seen)

    def _action(self, agent: str, text: str) -> Any:
        space = self.game.action_space(agent)
        if space is None or type(space).__name__ == "Text":  # by name: gymnasium need not be installed
            return text
        number = last_number(text)
        if number is None or abs(number) >= MAX_ACTION or number != int(number) or not space.contains(int(number)):
            return None
        mask = self._mask(agent)
        return int(number) if mask is None or mask[int(number)] else None

    def _mask(self, agent: str) -> Any:
        """The action mask from the observation or the infos; None if the game has none."""
        seen, info = self.game.observe(agent), self.game.infos[agent]
        for source in (seen, info):
            if isinstance(source, Mapping) and "action_mask" in source:
                return source["action_mask"]
        return None


@dataclass(frozen=True)
class Aec(WorldEnv):
    """A PettingZoo game for `workflow: multi_turn`; its roles are the game's agents, each with its own rewards.

    `game` is a module with a function `env`, such as pettingzoo.classic.tictactoe_v3, or a function: my.py:make.
    """

    game: str  # a module with a function `env`, or a function: my.py:make
    options: dict[str, Any] = field(default_factory=dict)  # arguments of that function
    rules: str = "Play the game. Answer with your action."  # the prompt of every task
    illegal: float = -1.0  # the reward of an invalid action
    size: Count = 100  # training games
    test_size: Count = 20  # held-out games

    def tasks(self, split: Split) -> list[Task]:
        """A task is a seed; the splits have different ones. Makes a game once, to fail before a model loads."""
        self._make().close()
        first, count = (0, self.size) if split == "train" else (1_000_000, self.test_size)
        return [Task(f"aec/{split}/{i}", self.rules, None, {"seed": first + i}) for i in range(count)]

    def open(self, task: Task) -> AecWorld:
        return AecWorld(self._make(), task.meta["seed"], self.illegal)

    def _make(self) -> Any:
        if ":" in self.game:
            return load(self.game)(**self.options)
        try:
            return importlib.import_module(self.game).env(**self.options)
        except ImportError as error:
            hint = "pip install 'pettingzoo[classic]'"
            raise ValueError(f"game: {self.game} cannot be imported ({error}); {hint}") from None
