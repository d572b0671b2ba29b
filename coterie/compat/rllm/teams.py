"""The part of a config that rLLM's scripts leave to defaults: policies, roles, credit and algorithm."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from coterie.compat.rllm.tools import LocalRetrievalTool

SHARED = "shared"  # the policy that plays all roles, as in rLLM unless each agent has an adapter


def team_config(name: str, roles: Sequence[str], judges_turns: bool, own_adapters: bool) -> dict[str, Any]:
    """One policy for all roles, or one per role; each turn's own reward where the workflow sets it.

    The groups of GRPO are the turns of one role on one task.
    """
    policies = roles if own_adapters else [SHARED]
    return {
        "name": name,
        "policies": {policy: {"model": "demo"} for policy in policies},
        "roles": {role: {"policy": role if own_adapters else SHARED} for role in roles},
        "credit": {"name": "own" if judges_turns else "team"},
        "algorithm": {"name": "grpo"} | ({"gamma_turn": 0.0} if judges_turns else {}),
    }


def options_of_tools(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a workflow, with rLLM's retrieval tool replaced by the equivalent options."""
    options = dict(arguments)
    tool = options.get("search_tool")
    if isinstance(tool, LocalRetrievalTool):
        del options["search_tool"]
        options |= tool.options
    return options
