"""Environments of PettingZoo, in which agents act one after another (AEC)."""

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

LARGEST = 2**31  # an action's number: below it, spaces compare without overflow


class AecWorld:
    """One game: whose turn it is sees an observation and answers; every agent earns what the game says.

    A space of texts takes what was said as it is; a discrete one takes the last number in it. An action that is none,
    or that the game's mask forbids, ends the game with `illegal` for its agent.
    """

    def __init__(self, game: Any, seed: int, illegal: float) -> None:
        self.game, self.seed, self.illegal = game, seed, illegal

    @property
    def speaking(self) -> tuple[str, ...]:
        return (self.game.agent_selection,)

    def reset(self) -> str:
        self.game.reset(seed=self.seed)
        return self._shown()

    def step(self, said: Mapping[str, str]) -> tuple[str, dict[str, float], bool]:
        ((agent, text),) = said.items()
        action = self._action(agent, text)
        if action is None:
            return "That is no action.", {agent: self.illegal}, True
        earned = dict.fromkeys(self.game.possible_agents, 0.0)
        self._act(action, earned)
        while self.game.agents and self._over(self.game.agent_selection):
            self._act(None, earned)  # who is out is asked all the same
        done = not self.game.agents
        return "" if done else self._shown(), earned, done

    def close(self) -> None:
        self.game.close()

    def _act(self, action: Any, earned: dict[str, float]) -> None:
        self.game.step(action)
        for agent, reward in self.game.rewards.items():
            earned[agent] += float(reward)

    def _over(self, agent: str) -> bool:
        return bool(self.game.terminations[agent] or self.game.truncations[agent])

    def _shown(self) -> str:
        seen = self.game.observe(self.game.agent_selection)
        return str(seen["observation"] if isinstance(seen, Mapping) and "observation" in seen else seen)

    def _action(self, agent: str, text: str) -> Any:
        space = self.game.action_space(agent)
        if space is None or type(space).__name__ == "Text":  # gymnasium's, which need not be installed
            return text
        number = last_number(text)
        if number is None or abs(number) >= LARGEST or number != int(number) or not space.contains(int(number)):
            return None
        mask = self._mask(agent)
        return int(number) if mask is None or mask[int(number)] else None

    def _mask(self, agent: str) -> Any:
        """Which actions are legal, where the game says so: in the observation or in its infos."""
        seen, info = self.game.observe(agent), self.game.infos[agent]
        for said in (seen, info):
            if isinstance(said, Mapping) and "action_mask" in said:
                return said["action_mask"]
        return None


@dataclass(frozen=True)
class Aec(WorldEnv):
    """A PettingZoo game for `workflow: multi_turn`, whose roles are the game's agents; each earns its own rewards.

    `game` makes one: a module with a function `env`, such as pettingzoo.classic.tictactoe_v3, or my.py:make.
    """

    game: str
    options: dict[str, Any] = field(default_factory=dict)  # for what makes the game
    rules: str = "Play the game. Answer with your action."
    illegal: float = -1.0  # what an action costs that is none
    size: Count = 100
    test_size: Count = 20

    def tasks(self, split: Split) -> list[Task]:
        """A task is a seed; those of the test are others. A game that cannot be made is told before a model loads."""
        self._made().close()
        first, count = (0, self.size) if split == "train" else (1_000_000, self.test_size)
        return [Task(f"aec/{split}/{i}", self.rules, None, {"seed": first + i}) for i in range(count)]

    def open(self, task: Task) -> AecWorld:
        return AecWorld(self._made(), task.meta["seed"], self.illegal)

    def _made(self) -> Any:
        if ":" in self.game:
            return load(self.game)(**self.options)
        try:
            return importlib.import_module(self.game).env(**self.options)
        except ImportError as error:
            hint = "pip install 'pettingzoo[classic]'"
            raise ValueError(f"game: {self.game} cannot be imported ({error}); {hint}") from None
