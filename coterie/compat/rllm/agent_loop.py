"""One agent with an environment, as rLLM's `agent_class` and `env_class`: observe, reply, step, until done.

The agent keeps the conversation (`chat_completions`) and turns a reply into an action; the environment, made from the
task's row, answers actions with observations and rewards. Both are a user's own classes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from coterie.compat.rllm.datasets import ANSWERS, QUESTIONS, Dataset
from coterie.compat.rllm.rewards import row_of
from coterie.data.row import Raw
from coterie.envs.worlds.world import awaited
from coterie.limits import Count
from coterie.prompts import check_counts
from coterie.types import Episode, Message, Outcome, Split, Task, Team, is_correct


@dataclass(frozen=True)
class AgentLoop:
    """One role, `agent`. The sum of the environment's rewards is the episode's, with `env: agent_rows`.

    An agent has `reset()`, `update_from_env(observation, reward, done, info)`, `update_from_model(reply)`, which
    returns the action, and `chat_completions`. An environment has `reset()` → (observation, info) and
    `step(action)` → (observation, reward, done, info), and may have a class method `from_dict(row)`.
    """

    agent_class: Callable[..., Any]  # path/to/file.py:Class of the agent
    env_class: Callable[..., Any]  # path/to/file.py:Class of the environment
    agent_args: dict[str, Any] = field(default_factory=dict)  # arguments of the agent
    env_args: dict[str, Any] = field(default_factory=dict)  # arguments of the environment, added to the row
    max_steps: int = 5  # replies, at most

    def __post_init__(self) -> None:
        check_counts(self, "max_steps")

    @property
    def roles(self) -> tuple[str, ...]:
        return ("agent",)

    async def run(self, task: Task, team: Team, world: Any) -> Outcome:
        agent, environment = self.agent_class(**self.agent_args), self._environment(row_of(task, task.answer))
        agent.reset()
        observation, info = await awaited(environment.reset())
        agent.update_from_env(observation, 0.0, False, info)
        rewards: list[float] = []
        done, reply = False, ""
        while not done and len(rewards) < self.max_steps:
            reply = (await team.agent.say(_messages(agent.chat_completions))).text
            action = agent.update_from_model(reply)
            action = getattr(action, "action", action)  # rLLM wraps it in an Action
            observation, reward, done, info = await awaited(environment.step(action))
            rewards.append(float(reward))
            agent.update_from_env(observation, float(reward), done, info)
        return Outcome(reply, {"steps": float(len(rewards)), "done": float(done)}, reward=sum(rewards))

    def _environment(self, row: Mapping[str, Any]) -> Any:
        make = getattr(self.env_class, "from_dict", None)
        return make({**row, **self.env_args}) if callable(make) else self.env_class(task=dict(row), **self.env_args)


def _messages(conversation: Any) -> list[Message]:
    return [Message(role=str(one["role"]), content=str(one["content"])) for one in conversation]


@dataclass(frozen=True)
class AgentRows:
    """Rows for `agent_loop` and `rllm`, which score the episode themselves; `reward: native`. A row has any fields."""

    train: Path  # training rows, jsonl, JSON or Parquet
    test: Path | None = None  # held-out rows, for evaluation
    limit: Count | None = None  # only the first rows of each file; null: all

    def tasks(self, split: Split) -> list[Task]:
        path = self.train if split == "train" else self.test
        if path is None:
            raise ValueError("test: evaluation needs held-out tasks; name a file, or set eval.tasks=0")
        rows = islice(Dataset(path).get_data(), self.limit)
        return [_task(f"{path.stem}/{number}", raw) for number, raw in enumerate(rows, 1)]

    def open(self, task: Task) -> None:
        return None

    async def score(self, episode: Episode) -> None:
        """Keep the reward that the workflow has set."""
        episode.metrics["accuracy"] = float(is_correct(episode.reward))


def _task(name: str, raw: Raw) -> Task:
    question = next((raw[key] for key in QUESTIONS if raw.get(key) is not None), "")
    answer = next((raw[key] for key in ANSWERS if raw.get(key) is not None), None)
    return Task(name, str(question), answer, raw)
