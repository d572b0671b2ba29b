"""A workflow written for rLLM: a subclass of `Workflow` whose `run(task, uid)` returns an episode of trajectories.

Its agents are the names that it passes to `get_model_response(…, agent_name="solver")`. The reward of a step is set on
the turn in its `model_output`; the episode's reward is 1 if `is_correct`.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Real
from typing import Any, ClassVar

from coterie.compat.rllm.rewards import row_of
from coterie.config.problems import ConfigError
from coterie.types import Message, Outcome, Task, Team, Turn

AGENT = "agent"  # the role of calls without an agent_name
AGENT_NAME = re.compile(r"""agent_name\s*=\s*["']([^"']+)["']""")
CALL = re.compile(r"\.get_model_response\(")


@dataclass
class ModelOutput:
    """A reply."""

    content: str
    turn: Turn
    reasoning: str = ""

    @property
    def text(self) -> str:
        return self.content


@dataclass
class Step:
    """One reply of an agent, and its reward."""

    chat_completions: list[dict[str, Any]] = field(default_factory=list)
    thought: str | None = ""
    action: Any = None
    observation: Any = None
    model_response: str = ""
    model_output: ModelOutput | None = None
    info: dict[str, Any] = field(default_factory=dict)
    reward: float = 0.0
    done: bool = False


@dataclass
class Trajectory:
    """The steps of one agent."""

    name: str = AGENT
    task: Any = None
    steps: list[Step] = field(default_factory=list)
    reward: float | None = None


@dataclass
class RllmEpisode:
    """What a workflow's `run` returns."""

    id: str = ""
    task: Any = None
    trajectories: list[Trajectory] = field(default_factory=list)
    is_correct: bool = False
    metrics: Mapping[str, Any] = field(default_factory=dict)


class RolloutEngine:
    """Samples replies of the team's roles."""

    def __init__(self, team: Team) -> None:
        self.team = team

    async def get_model_response(
        self, messages: Sequence[Mapping[str, Any]], agent_name: str | None = None, **_: Any
    ) -> ModelOutput:
        chat = [Message(role=str(one["role"]), content=str(one["content"])) for one in messages]
        turn = await self.team[agent_name or AGENT].say(chat)
        return ModelOutput(turn.text, turn)


class Workflow:
    """The base class of rLLM's workflows."""

    def __init__(self, rollout_engine: RolloutEngine, **options: Any) -> None:
        self.rollout_engine = rollout_engine

    def reset(self, task: Mapping[str, Any] | None = None, uid: str | None = None) -> None:
        self.task, self.uid = task, uid

    async def run(self, task: dict[str, Any], uid: str, **options: Any) -> RllmEpisode:
        raise NotImplementedError


def agent_names(workflow: type) -> tuple[str, ...]:
    """The agents that the file of a workflow names, in order; a call without a name is the role `agent`."""
    text = inspect.getsource(sys.modules[workflow.__module__])
    names = list(dict.fromkeys(AGENT_NAME.findall(text)))
    unnamed = len(CALL.findall(text)) > len(AGENT_NAME.findall(text))
    return tuple([*names, AGENT] if unnamed or not names else names)


@dataclass(frozen=True)
class OwnWorkflow:
    """Plays a workflow written for rLLM; `env: agent_rows`."""

    judges_turns: ClassVar[bool] = True

    workflow_class: Callable[..., Any]  # path/to/file.py:Class
    agents: tuple[str, ...]  # its roles
    arguments: dict[str, Any] = field(default_factory=dict)  # its options
    functions: dict[str, Callable[..., Any]] = field(default_factory=dict)  # its options that are functions
    objects: dict[str, Callable[..., Any]] = field(default_factory=dict)  # classes of its options that are objects

    @property
    def roles(self) -> tuple[str, ...]:
        return self.agents

    async def run(self, task: Task, team: Team, world: Any) -> Outcome:
        objects = {name: make() for name, make in self.objects.items()}
        options = {**self.arguments, **self.functions, **objects}
        workflow = self.workflow_class(rollout_engine=RolloutEngine(team), **options)
        episode: RllmEpisode = await workflow.run(row_of(task, task.answer), task.id)
        steps = [step for trajectory in episode.trajectories for step in trajectory.steps]
        for step in steps:
            if step.model_output is not None:
                step.model_output.turn.reward = float(step.reward)
        metrics = {name: float(value) for name, value in episode.metrics.items() if isinstance(value, Real)}
        answer = steps[-1].model_output.content if steps and steps[-1].model_output else ""
        return Outcome(answer, metrics, reward=float(episode.is_correct))


def own_options(workflow: type, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The options of `OwnWorkflow` for a class and its arguments.

    An object is stored as its class, so it must equal what the class makes without arguments.
    """
    options: dict[str, Any] = {"workflow_class": workflow, "agents": list(agent_names(workflow))}
    plain, functions, objects = dict[str, Any](), dict[str, Any](), dict[str, Any]()
    for name, value in arguments.items():
        if value is None or isinstance(value, bool | int | float | str | list | dict):
            plain[name] = value
        elif inspect.isfunction(value):
            functions[name] = value
        elif value == type(value)():
            objects[name] = type(value)
        else:
            why = "the run stores its class; give it no arguments, or pass a function"
            raise ConfigError(f"workflow_args.{name}: {type(value).__name__} was made with arguments; {why}")
    return {**options, "arguments": plain, "functions": functions, "objects": objects}
