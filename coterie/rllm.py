"""rLLM's names, for its training scripts: change the imports, and the rest stays as it is.

    from coterie.rllm import AgentTrainer, DatasetRegistry, MultiAgentDeepCoderWorkflow, code_reward_fn, hydra

Here `config` holds overrides, by verl's names or Coterie's; what it leaves open is filled in: one policy for all roles,
the environment of the prepared data, and GRPO.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from coterie import api, api_config
from coterie.compat.rllm import parameters
from coterie.compat.rllm.datasets import Dataset, DatasetRegistry
from coterie.compat.rllm.own_workflow import ModelOutput, RolloutEngine, Step, Trajectory, Workflow, own_options
from coterie.compat.rllm.own_workflow import RllmEpisode as Episode
from coterie.compat.rllm.rewards import RewardFunction, RewardOutput, code_reward_fn, math_reward_fn, search_reward_fn
from coterie.compat.rllm.teams import options_of_tools, team_config
from coterie.compat.rllm.tools import LocalRetrievalTool
from coterie.config import ConfigError
from coterie.config.registry import find, options_of
from coterie.workflows.deep_research import DeepResearch as MultiAgentDeepResearchWorkflow
from coterie.workflows.deepcoder import DeepCoder as MultiAgentDeepCoderWorkflow
from coterie.workflows.math_tool import MathTool as MultiAgentMathToolWorkflow
from coterie.workflows.search import Search as MultiAgentSearchWorkflow
from coterie.workflows.swe import Swe as MultiAgentSWEWorkflow

__all__ = [
    "AgentTrainer",
    "Dataset",
    "DatasetRegistry",
    "Episode",
    "LocalRetrievalTool",
    "ModelOutput",
    "MultiAgentDeepCoderWorkflow",
    "MultiAgentDeepResearchWorkflow",
    "MultiAgentMathToolWorkflow",
    "MultiAgentSWEWorkflow",
    "MultiAgentSearchWorkflow",
    "RewardFunction",
    "RewardOutput",
    "RolloutEngine",
    "Step",
    "Trajectory",
    "Workflow",
    "code_reward_fn",
    "hydra",
    "math_reward_fn",
    "search_reward_fn",
]


OWN = "rllm"  # the built-in workflow that runs a subclass of rLLM's Workflow


class AgentTrainer(api.AgentTrainer):
    """`coterie.AgentTrainer` with rLLM's signature and defaults."""

    def __init__(
        self,
        workflow_class: Any = None,
        workflow_args: Mapping[str, Any] | None = None,
        agent_class: type | None = None,
        agent_args: Mapping[str, Any] | None = None,
        env_class: type | None = None,
        env_args: Mapping[str, Any] | None = None,
        config: Mapping[str, Any] | Sequence[str] | None = None,
        train_dataset: Any = None,
        val_dataset: Any = None,
        backend: str = "verl",  # has no effect: there is one trainer
    ) -> None:
        overrides = parameters.as_overrides(config)
        workflow = api_config.one_workflow(None, workflow_class, agent_class, env_class)
        if isinstance(workflow, type) and issubclass(workflow, Workflow):
            workflow_class, workflow_args = OWN, own_options(workflow, workflow_args or {})
            workflow = OWN
        arguments = options_of_tools(workflow_args or {})
        roles = _roles(workflow, arguments)
        own_adapters = parameters.has_own_adapters(overrides, roles)
        tree = team_config("rllm", roles, _judges_turns(workflow), own_adapters)
        tree |= _task_config(workflow, train_dataset)
        super().__init__(
            config=tree,
            workflow_class=workflow_class,
            workflow_args=arguments,
            agent_class=agent_class,
            agent_args=agent_args,
            env_class=env_class,
            env_args=env_args,
            train_dataset=_place(train_dataset),
            val_dataset=_place(val_dataset),
            overrides=parameters.translate(
                overrides, list(tree["roles"]), list(tree["policies"]), evaluates=val_dataset is not None
            ),
        )


def _roles(workflow: Any, arguments: Mapping[str, Any]) -> list[str]:
    """The roles of a workflow: a class, an instance, or a built-in name. They may depend on its options."""
    if workflow is None:
        raise ConfigError("workflow_class: missing; pass the workflow, or agent_class and env_class")
    if workflow == api_config.AGENT_LOOP:
        return ["agent"]
    if workflow == OWN:
        return list(arguments["agents"])
    if not isinstance(workflow, type | str):
        return list(workflow.roles)
    cls = find("workflow", workflow) if isinstance(workflow, str) else workflow
    known = options_of(cls)
    return list(cls(**{name: value for name, value in arguments.items() if name in known}).roles)


def _judges_turns(workflow: Any) -> bool:
    cls = find("workflow", workflow) if isinstance(workflow, str) else workflow
    return bool(getattr(cls, "judges_turns", False))  # a user's own workflow need not have it


def _task_config(workflow: Any, dataset: Any) -> dict[str, Any]:
    """The environment and the reward of a dataset; `reward_function` replaces the reward."""
    if workflow in (api_config.AGENT_LOOP, OWN):
        return {"env": {"name": "agent_rows"}, "reward": "native"}
    if isinstance(dataset, Dataset):
        return {"env": dataset.env(), "reward": dataset.reward()}
    return {"reward": "exact"}


def _place(dataset: Any) -> Any:
    return dataset.path if isinstance(dataset, Dataset) else dataset


def _main(*_: Any, **__: Any) -> Callable[[Callable[..., Any]], Callable[[], Any]]:
    """Hydra's decorator, without its config files: the function gets the overrides of the command line."""

    def decorate(function: Callable[..., Any]) -> Callable[[], Any]:
        @functools.wraps(function)
        def run() -> Any:
            return function(sys.argv[1:])

        return run

    return decorate


hydra = SimpleNamespace(main=_main)
