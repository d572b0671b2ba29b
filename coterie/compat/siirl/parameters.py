"""siiRL's parameters, from its command line, `global_config` or a node, put at their keys of the config."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from typing import Any

from coterie.compat.siirl.config_draft import ConfigDraft, Parameters, Sourced
from coterie.compat.siirl.nodes import GLOBALS, Node
from coterie.compat.siirl.parameter_table import (
    COMPOUND,
    GROUPS,
    INSTEAD,
    SETTINGS,
    TEAM,
    Setting,
    full_name,
    is_switch,
    is_without_effect,
)
from coterie.config import yamltree
from coterie.config.hints import hint_for
from coterie.config.problems import Path, Problems, undotted
from coterie.config.settings import Config
from coterie.errors import did_you_mean

# The first names of Coterie's own keys. `algorithm` and `rollout` also begin parameters of siiRL.
OWN_KEYS = {(f.name,) for f in fields(Config)} - {("algorithm",), ("rollout",)}
FILES = (("env", "train"), ("env", "test"))  # keys that are paths


def split(overrides: Sequence[str], problems: Problems) -> tuple[Parameters, list[str]]:
    """siiRL's parameters among the overrides, by their full names; and the rest, which are Coterie's keys."""
    parameters: Parameters = {}
    rest: list[str] = []
    for override in overrides:
        key = override.partition("=")[0].strip()
        name = None if undotted(key)[:1] in OWN_KEYS else full_name(key, (TEAM,))
        if name is None and undotted(key)[:1] not in {(group,) for group in GROUPS}:
            rest.append(override)
        elif name is None:
            problems.found.append(f"{key}: {unknown(key)} (override {override})")
        else:
            parameters |= _parsed(name, key, override, problems)
    return parameters, rest


def in_globals(globals: Mapping[str, Any], problems: Problems) -> Parameters:
    """The parameters in `global_config` under siiRL's groups; its other keys are only for `!Ref`."""
    parameters: Parameters = {}
    for path, value in leaves(globals, ()):
        key = ".".join(path)
        if full_name(key, ()) is not None:
            parameters[key] = Sourced(value, problems.sources.place((GLOBALS, *path)))
        elif undotted(key)[0] in GROUPS:
            problems.add((GLOBALS, *path), unknown(key))
    return parameters


def unknown(key: str) -> str:
    """The message for a parameter that Coterie does not have."""
    if instead := INSTEAD.get(key) or INSTEAD.get(f"{TEAM}{key}"):
        return f"unknown key; {instead}"
    if hint := hint_for(undotted(key)):
        return f"unknown key; {hint}"
    return f"unknown key: siiRL and verl have no such parameter, or Coterie has no counterpart{_near(key)}"


def _near(key: str) -> str:
    """A parameter of the same group with a similar last name; the names before it are alike for all of them."""
    group, _, last = key.rpartition(".")
    names = {
        name.rpartition(".")[2]: name for name in (*SETTINGS, *COMPOUND) if name.rpartition(".")[0].endswith(group)
    }
    near = did_you_mean(last, names)
    return next((near.replace(name, full) for name, full in names.items() if near.endswith(f" {name}?")), "")


def leaves(data: Mapping[str, Any], path: Path) -> Iterator[tuple[Path, Any]]:
    """Every value of nested mappings, with its path."""
    for key, item in data.items():
        if isinstance(item, dict) and item:
            yield from leaves(item, (*path, key))
        else:
            yield (*path, key), item


def _parsed(name: str, key: str, override: str, problems: Problems) -> Parameters:
    tree: dict[str, Any] = {}
    yamltree.override(tree, override, problems)
    value: Any = tree
    for part in undotted(key):
        value = value[part] if isinstance(value, dict) and part in value else None
    return {name: Sourced(value, f"override {override}")}


def put_parameters(draft: ConfigDraft) -> dict[str, Parameters]:
    """Set the key of every parameter that has one; return the nodes' own parameters, by node."""
    team = draft.team
    by_node = {node.node_id: settings_of(node, draft) for node in draft.graph.nodes}
    everyone = [node.node_id for node in team.rollouts]
    names = {"{policy}": team.policies, "{role}": everyone, "{critic}": list(team.critics)}
    _put(draft, draft.parameters, names, False)
    for node in draft.graph.nodes:
        _put(draft, by_node[node.node_id], _targets_of(draft, node), True)
    return by_node


def settings_of(node: Node, draft: ConfigDraft) -> Parameters:
    """A node's own parameters, by their full names."""
    lead = "critic." if node.node_role == "CRITIC" else "algorithm." if node.node_type == "COMPUTE" else TEAM
    own: Parameters = {}
    for path, value in leaves(node.config, ()):
        key, at = ".".join(path), node.at("config", *path)
        name = full_name(key, (lead,))
        if name is None:
            draft.problems.add(at, unknown(key))
        else:
            own[name] = Sourced(value, draft.place(at))
    return own


def _targets_of(draft: ConfigDraft, node: Node) -> dict[str, list[str]]:
    """The policies, roles and critics that a node's parameters apply to."""
    team = draft.team
    speaks = any(other.agent_group == node.agent_group for other in team.rollouts)
    critic = team.critic(node.agent_group) if node.node_role == "CRITIC" else None
    return {
        "{policy}": [team.policy(node.agent_group)] if speaks else [],
        "{role}": [node.node_id] if node.node_role == "ROLLOUT" else [],
        "{critic}": [critic] if critic in team.critics else [],
    }


def _put(draft: ConfigDraft, parameters: Parameters, names: dict[str, list[str]], by_node: bool) -> None:
    for name, sourced in parameters.items():
        if is_without_effect(name):
            draft.unused.add(name.removeprefix(TEAM))
        elif is_switch(name):
            _switch(draft, name, sourced)
        elif name in SETTINGS and sourced.value is not None:  # null is siiRL's default
            value = _read(draft, name, sourced)
            for path in _targets(SETTINGS[name], names) if value is not None else ():
                absolute = str(draft.file(value)) if path in FILES and isinstance(value, str) else value
                draft.put(path, absolute, sourced.place, by_node)


def _switch(draft: ConfigDraft, name: str, sourced: Sourced) -> None:
    if sourced.value in (None, False) or (isinstance(sourced.value, int | float) and sourced.value <= 0):
        draft.unused.add(name.removeprefix(TEAM))
    elif not name.startswith("reward_model.overlong_buffer.") or name.endswith(".enable"):
        instead = INSTEAD.get(name, "remove it")
        draft.problems.found.append(f"{name}: has no counterpart here; {instead} ({sourced.place})")


def _read(draft: ConfigDraft, name: str, sourced: Sourced) -> Any:
    try:
        return SETTINGS[name].read(sourced.value)
    except ValueError as error:
        draft.problems.found.append(f"{name}: {error} ({sourced.place})")
        return None


def _targets(setting: Setting, names: dict[str, Sequence[str]] | dict[str, list[str]]) -> Iterator[Path]:
    for key in setting.to:
        path = undotted(key)
        gap = next((part for part in path if part in names), None)
        for filled in names[gap] if gap is not None else [""]:
            yield tuple(filled if part == gap else part for part in path)
