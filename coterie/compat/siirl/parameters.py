"""Parameters of the script and of single nodes, put where they belong in a config."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from coterie.compat.siirl.config_draft import Draft
from coterie.compat.siirl.config_sheet import Given
from coterie.compat.siirl.node import Node
from coterie.compat.siirl.script import Script, leaves, unknown
from coterie.compat.siirl.settings import SETTINGS, TEAM, Setting, full_name, is_without_effect
from coterie.config.problems import Path, undotted

FILES = (("env", "train"), ("env", "test"))


def settle(draft: Draft) -> dict[str, Script]:
    """Put every parameter that has a key of its own here. The nodes' own parameters come back, by node."""
    cast = draft.cast
    by_node = {node.node_id: settings_of(node, draft) for node in draft.graph.nodes}
    everyone = [node.node_id for node in cast.rollouts]
    _put(draft, draft.script, {"{policy}": cast.policies, "{role}": everyone, "{critic}": list(cast.critics)}, False)
    for node in draft.graph.nodes:
        _put(draft, by_node[node.node_id], _concerned(draft, node), True)
    return by_node


def settings_of(node: Node, draft: Draft) -> Script:
    """A node's own parameters, by their whole names."""
    lead = "critic." if node.node_role == "CRITIC" else "algorithm." if node.node_type == "COMPUTE" else TEAM
    own: Script = {}
    for path, value in leaves(node.config, ()):
        key, at = ".".join(path), node.at("config", *path)
        name = full_name(key, (lead,))
        if name is None:
            draft.problems.add(at, unknown(key))
        else:
            own[name] = Given(value, draft.place(at))
    return own


def _concerned(draft: Draft, node: Node) -> dict[str, list[str]]:
    """Whom a node's parameters are for."""
    cast = draft.cast
    speaks = any(other.agent_group == node.agent_group for other in cast.rollouts)
    critic = cast.critic(node.agent_group) if node.node_role == "CRITIC" else None
    return {
        "{policy}": [cast.policy(node.agent_group)] if speaks else [],
        "{role}": [node.node_id] if node.node_role == "ROLLOUT" else [],
        "{critic}": [critic] if critic in cast.critics else [],
    }


def _put(draft: Draft, script: Script, names: dict[str, list[str]], by_node: bool) -> None:
    for name, given in script.items():
        if is_without_effect(name):
            draft.unused.add(name.removeprefix(TEAM))
        elif name in SETTINGS and given.value is not None:  # null is siiRL's word for the default
            value = _read(draft, name, given)
            for path in _targets(SETTINGS[name], names) if value is not None else ():
                lasting = str(draft.file(value)) if path in FILES and isinstance(value, str) else value
                draft.sheet.put(path, lasting, given.place, by_node)


def _read(draft: Draft, name: str, given: Given) -> Any:
    try:
        return SETTINGS[name].read(given.value)
    except ValueError as error:
        draft.problems.found.append(f"{name}: {error} ({given.place})")
        return None


def _targets(setting: Setting, names: dict[str, Sequence[str]] | dict[str, list[str]]) -> Iterator[Path]:
    for key in setting.to:
        path = undotted(key)
        gap = next((part for part in path if part in names), None)
        for filled in names[gap] if gap is not None else [""]:
            yield tuple(filled if part == gap else part for part in path)
