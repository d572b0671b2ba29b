"""Translate a siiRL YAML graph and its parameters into a config; each key keeps the line or override it comes from."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from coterie.compat.siirl.check import check_nodes
from coterie.compat.siirl.config_draft import ConfigDraft
from coterie.compat.siirl.env import world_class
from coterie.compat.siirl.hooks import Hooks
from coterie.compat.siirl.learning import drop_without_effect, put_learning
from coterie.compat.siirl.nodes import Node, read_nodes
from coterie.compat.siirl.nodes import is_graph as recognizes
from coterie.compat.siirl.parameters import in_globals, put_parameters, split
from coterie.config.problems import Problems

__all__ = ["recognizes", "translate"]


def put_team(draft: ConfigDraft) -> None:
    """Set policies, roles, workflow, environment, reward and credit."""
    _team(draft)
    agents = [_agent(draft, node, place) for place, node in enumerate(draft.team.rollouts)]
    draft.put(("workflow", "name"), "graph", ("nodes",))
    draft.put(("workflow", "agents"), agents, ("nodes",))
    for node in draft.team.rollouts:
        _world(draft, node)
    _rewards(draft)


def _team(draft: ConfigDraft) -> None:
    if "trainer.experiment_name" not in draft.parameters:
        draft.put(("name",), draft.graph.dag_id, ("dag_id",))
    for policy in draft.team.policies:
        draft.put(("policies", policy, "frozen"), policy not in draft.team.training, ("nodes", policy))
    for node in draft.team.rollouts:
        draft.put(("roles", node.node_id, "policy"), draft.team.policy(node.agent_group), node.at())


def _agent(draft: ConfigDraft, node: Node, place: int) -> dict[str, Any]:
    """One agent of the workflow; messages about it name the line of the graph."""
    options = node.agent_options
    path = draft.file(options.process_path) if options.process_path else None
    written = draft.place(node.option("process_path")) if path else ""
    hooks = Hooks(node.node_id, path, options.pre_process_kwargs, options.post_process_kwargs, written)
    draft.attempt(hooks.check, node.option("process_path"))
    own = {f.name: getattr(hooks, f.name) for f in fields(Hooks)}
    for key in own:
        draft.problems.sources.places["workflow", "agents", str(place), key] = draft.place(node.option(key))
    own |= {"process_path": None if path is None else str(path), "obs_with_env": options.obs_with_env}
    return own | {"dependencies": draft.team.reads(node)}


def _world(draft: ConfigDraft, node: Node) -> None:
    paths, at = node.agent_options.env_path, node.option("env_path")
    names = [paths] if isinstance(paths, str) else list(paths)
    if len(names) > 1:
        draft.problems.add(at, f"bad env_path: expected one environment, got {len(names)}")
    elif names and not node.agent_options.obs_with_env and not rewards_with_env(draft):
        off = "obs_with_env is false here, and actor_rollout_ref.rollout.agent.rewards_with_env is not true"
        draft.problems.add(at, f"bad env_path: nothing asks this environment: {off}")
    elif names:
        file, colon, name = names[0].rpartition(":")
        whole = f"{draft.file(file)}{colon}{name}"
        draft.attempt(lambda: world_class(whole), at)
        draft.put(("env", "worlds", node.node_id), whole, at)


def rewards_with_env(draft: ConfigDraft) -> bool:
    setting = draft.get("workflow", "rewards_with_env")
    return setting is not None and setting.value is True


def _rewards(draft: ConfigDraft) -> None:
    """Rewards come from the environments, or from grading."""
    by_env = rewards_with_env(draft)
    if by_env and not any(node.agent_options.env_path for node in draft.team.rollouts):
        draft.problems.add(("nodes",), "rewards_with_env asks the environments, but no node has an env_path")
    if not by_env and not draft.team.rewarded:
        draft.problems.add(("nodes",), "nobody is rewarded: no node has the role REWARD, and rewards_with_env is off")
    draft.put(("env", "name"), "graph_env" if by_env else "graph", ("nodes",))
    draft.put(("reward", "name"), "native" if by_env else "math", ("nodes",))
    draft.put(("credit", "name"), "graph", ("nodes",))
    draft.put(("workflow", "rewarded"), draft.team.rewarded or [draft.team.rollouts[-1].node_id], ("nodes",))


def translate(text: str, file: Path, overrides: Sequence[str], problems: Problems) -> tuple[dict[str, Any], list[str]]:
    """The config's tree, and the overrides that are Coterie's keys; a ConfigError lists all problems.

    Parameters without a counterpart, such as the number of GPUs, are listed on stderr.
    """
    script, rest = split(overrides, problems)
    graph = read_nodes(text, file.parent, problems)
    check_nodes(graph, problems)
    draft = ConfigDraft(graph, in_globals(graph.globals, problems) | script, file.parent, problems)
    by_node = put_parameters(draft)
    put_team(draft)
    put_learning(draft, by_node)
    if not problems.found:
        drop_without_effect(draft, {override.partition("=")[0].strip() for override in rest})
    if draft.get("env", "train") is None and not any(override.startswith("env") for override in rest):
        problems.found.append(f"env.train: missing; data.train_files=FILE says where the tasks are ({file})")
    problems.raise_any()
    if draft.unused:
        print(f"{file}: no effect here: {', '.join(sorted(draft.unused))}", file=sys.stderr)
    return draft.tree, rest
