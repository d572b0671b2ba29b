"""How a graph plays: its roles, what they do to prompts and replies, what they act on, and what is rewarded."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from coterie.compat.siirl.config_draft import Draft
from coterie.compat.siirl.hooks import Hooks
from coterie.compat.siirl.node import Node
from coterie.compat.siirl.world import world_class


def playing(draft: Draft) -> None:
    """Put policies, roles, the workflow, the environment, the reward and who shares it."""
    _team(draft)
    agents = [_agent(draft, node, place) for place, node in enumerate(draft.cast.rollouts)]
    draft.put(("workflow", "name"), "graph", ("nodes",))
    draft.put(("workflow", "agents"), agents, ("nodes",))
    for node in draft.cast.rollouts:
        _world(draft, node)
    _rewards(draft)


def _team(draft: Draft) -> None:
    if "trainer.experiment_name" not in draft.script:
        draft.put(("name",), draft.graph.dag_id, ("dag_id",))
    for policy in draft.cast.policies:
        draft.put(("policies", policy, "frozen"), policy not in draft.cast.training, ("nodes", policy))
    for node in draft.cast.rollouts:
        draft.put(("roles", node.node_id, "policy"), draft.cast.policy(node.agent_group), node.at())


def _agent(draft: Draft, node: Node, place: int) -> dict[str, Any]:
    """One agent of the workflow; later complaints about it name the graph's own line."""
    options = node.agent_options
    path = draft.file(options.process_path) if options.process_path else None
    written = draft.place(node.option("process_path")) if path else ""
    hooks = Hooks(node.node_id, path, options.pre_process_kwargs, options.post_process_kwargs, written)
    draft.attempt(hooks.check, node.option("process_path"))
    own = {f.name: getattr(hooks, f.name) for f in fields(Hooks)}
    for key in own:
        draft.problems.sources.places["workflow", "agents", str(place), key] = draft.place(node.option(key))
    return own | {"process_path": None if path is None else str(path), "obs_with_env": options.obs_with_env}


def _world(draft: Draft, node: Node) -> None:
    given, at = node.agent_options.env_path, node.option("env_path")
    names = [given] if isinstance(given, str) else list(given)
    if len(names) > 1:
        draft.problems.add(at, f"bad env_path: one environment is wanted, not {len(names)}")
    elif names and not node.agent_options.obs_with_env:
        draft.problems.add(at, "bad env_path: has no effect while obs_with_env is false")
    elif names:
        file, colon, name = names[0].rpartition(":")
        whole = f"{draft.file(file)}{colon}{name}"
        draft.attempt(lambda: world_class(whole), at)
        draft.put(("env", "worlds", node.node_id), whole, at)


def _rewards(draft: Draft) -> None:
    """The environments say what was earned, or the reward does."""
    told = draft.sheet.get("workflow", "rewards_with_env")
    by_env = told is not None and told.value is True
    if by_env and not any(node.agent_options.env_path for node in draft.cast.rollouts):
        draft.problems.add(("nodes",), "rewards_with_env asks the environments, but no node has an env_path")
    if not by_env and not draft.cast.rewarded:
        draft.problems.add(("nodes",), "nobody is rewarded: no node has the role REWARD, and rewards_with_env is off")
    draft.put(("env", "name"), "graph_env" if by_env else "graph", ("nodes",))
    draft.put(("reward", "name"), "native" if by_env else "math", ("nodes",))
    draft.put(("credit", "name"), "graph", ("nodes",))
    draft.put(("workflow", "rewarded"), draft.cast.rewarded or [draft.cast.rollouts[-1].node_id], ("nodes",))
