"""Check the nodes of a graph against each other: dependencies, groups, roles, options."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields

from coterie.compat.siirl.nodes import AgentOptions, Node, Nodes
from coterie.config.problems import Path, Problems
from coterie.errors import did_you_mean

Found = Iterator[tuple[Path, str]]
WITH_A_ROLE = ("COMPUTE", "MODEL_INFERENCE", "MODEL_TRAIN")
SAMPLING = "dynamic_sampling"  # siiRL's function that drops groups without variance
# The options of each node_role; on other roles they have no effect.
OF_A_ROLE = {
    "ROLLOUT": {
        "obs_with_env", "process_path", "pre_process_kwargs", "post_process_kwargs", "env_path", "share_instance",
    },
    "ACTOR": {"train_cycle", "share_instance"},
    "CRITIC": {"share_instance"},
    "REFERENCE": {"share_instance"},
}  # fmt: skip


def check_nodes(graph: Nodes, problems: Problems) -> None:
    """Raise a ConfigError that lists every problem with its node and line."""
    for check in (_dependencies, _cycle, _groups, _roles, _options, _shared, _cycles_of_training, _executables):
        for path, message in check(graph):
            problems.add(path, message)
    problems.raise_any()


def in_order(graph: Nodes) -> list[Node]:
    """Topological order, ties in the order of the file; nodes of a cycle are left out."""
    placed: dict[str, Node] = {}
    waiting = list(graph.nodes)
    while ready := [node for node in waiting if all(name in placed for name in node.dependencies)]:
        placed[ready[0].node_id] = ready[0]
        waiting.remove(ready[0])
    return list(placed.values())


def before(graph: Nodes, node: Node) -> set[str]:
    """The ids of all ancestors of a node."""
    by_id = {one.node_id: one for one in graph.nodes}
    found: set[str] = set()
    todo = list(node.dependencies)
    while todo:
        name = todo.pop()
        if name not in found:
            found.add(name)
            todo += by_id[name].dependencies
    return found


def _dependencies(graph: Nodes) -> Found:
    names = [node.node_id for node in graph.nodes]
    for node in graph.nodes:
        for missing in [name for name in node.dependencies if name not in names]:
            yield node.at("dependencies"), f"missing node: nothing is called {missing!r}{did_you_mean(missing, names)}"


def _cycle(graph: Nodes) -> Found:
    by_id = {node.node_id: node for node in graph.nodes}
    if any(name not in by_id for node in graph.nodes for name in node.dependencies):
        return
    stuck = {node.node_id for node in graph.nodes} - {node.node_id for node in in_order(graph)}
    if not stuck:
        return
    walk = [next(node.node_id for node in graph.nodes if node.node_id in stuck)]
    while walk[-1] not in walk[:-1]:  # every node of a cycle depends on another one of it
        walk.append(next(name for name in by_id[walk[-1]].dependencies if name in stuck))
    loop = walk[walk.index(walk[-1]) :]
    yield by_id[loop[0]].at("dependencies"), f"cycle: {' → '.join(loop)}; a node cannot depend on itself"


def _groups(graph: Nodes) -> Found:
    groups = sorted({node.agent_group for node in graph.nodes})
    gaps = [group for group in range(len(groups)) if group not in groups]
    if gaps:
        beyond = next(node for node in graph.nodes if node.agent_group > gaps[0])
        listed = ", ".join(map(str, groups))
        gap = f"they are {listed}, and {gaps[0]} is missing"
        yield beyond.at("agent_group"), f"gap in groups: {gap}; they count from 0 without gaps"
    speaking = {node.agent_group for node in graph.with_role("ROLLOUT")}
    if not speaking:
        yield ("nodes",), "no node has the role ROLLOUT, so nobody speaks"
    for node in graph.nodes:
        if speaking and node.node_role in ("ACTOR", "CRITIC", "REFERENCE") and node.agent_group not in speaking:
            yield node.at("agent_group"), f"silent group: no ROLLOUT node belongs to {node.agent_group}"


def _roles(graph: Nodes) -> Found:
    for node in graph.nodes:
        if not node.node_id.strip():
            yield node.at("node_id"), "is empty; a node needs a name"
        if node.node_role != "DEFAULT" and node.node_type not in WITH_A_ROLE:
            yield node.at("node_role"), f"{node.node_role} needs a node_type of {', '.join(WITH_A_ROLE)}"
        if (node.node_role == "ROLLOUT") != (node.node_type == "MODEL_INFERENCE") and node.node_role != "REFERENCE":
            pair = f"{node.node_type} and {node.node_role}"
            yield node.at("node_type"), f"MODEL_INFERENCE and ROLLOUT go together, not {pair}"
    if graph.with_role("ACTOR") and not graph.with_role("ADVANTAGE"):
        yield graph.with_role("ACTOR")[0].at(), "no node has the role ADVANTAGE, so there is nothing to train on"


def _options(graph: Nodes) -> Found:
    for node in graph.nodes:
        allowed = OF_A_ROLE.get(node.node_role, set())
        for option in fields(AgentOptions):
            value = getattr(node.agent_options, option.name)
            if value not in (None, False, (), {}) and option.name not in allowed:
                yield node.option(option.name), f"has no effect on a node with the role {node.node_role}"


def _shared(graph: Nodes) -> Found:
    """`share_instance` names a group with a model of its own."""
    for node in (node for node in graph.nodes if node.node_role in OF_A_ROLE):
        target = node.agent_options.share_instance
        if target is None:
            continue
        peers = [one for one in graph.with_role(node.node_role) if one.agent_group != node.agent_group]
        owners = {one.agent_group for one in peers if one.agent_options.share_instance is None}
        if target not in owners:
            there = ", ".join(map(str, sorted(owners))) or "none"
            none = f"group {target} has no {node.node_role} of its own that could be shared"
            yield node.option("share_instance"), f"{none}; those that have: {there}"


def _cycles_of_training(graph: Nodes) -> Found:
    """Either every training agent has the same `train_cycle`, or none has one."""
    training = [node for node in graph.with_role("ACTOR") if node.trains]
    for node in graph.with_role("ACTOR"):
        if node.agent_options.train_cycle is not None and not node.trains:
            yield node.option("train_cycle"), "has no effect on a node that does not train"
    cycles = {node.agent_options.train_cycle for node in training}
    if len(cycles) > 1:
        cycles_of = ", ".join(f"{node.node_id} {node.agent_options.train_cycle}" for node in training)
        odd = next(n for n in training if n.agent_options.train_cycle != training[0].agent_options.train_cycle)
        yield odd.option("train_cycle"), f"must be the same for all agents that train: {cycles_of}"


def _executables(graph: Nodes) -> Found:
    """Allow references to siiRL's own functions, which the node's role implies; other code cannot run here."""
    for node in graph.nodes:
        name = node.executable_ref or ""
        known = name.startswith("siirl.") and (node.node_role != "DEFAULT" or name.endswith(SAMPLING))
        if name and not known:
            yield node.at("executable_ref"), f"{name} cannot run here: only node roles are translated, not code"
        if node.node_type == "CUSTOM":
            yield node.at("node_type"), "CUSTOM nodes run siiRL code, which cannot run here"
