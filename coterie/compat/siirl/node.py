"""The nodes of a graph, read strictly."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path as File
from typing import Any, Literal

from coterie.compat.siirl.read import GLOBALS, read_graph
from coterie.config.problems import Path, Problems
from coterie.config.reader import Reader
from coterie.limits import Count, CountFromZero

NodeType = Literal[
    "COMPUTE", "DATA_LOAD", "ENV_INTERACT", "MODEL_INFERENCE", "MODEL_TRAIN",
    "PUT_TO_BUFFER", "GET_FROM_BUFFER", "BARRIER_SYNC", "CUSTOM",
]  # fmt: skip
NodeRole = Literal[
    "DEFAULT", "ROLLOUT", "ACTOR", "CRITIC", "REFERENCE", "REWARD", "ADVANTAGE", "DYNAMIC_SAMPLING",
    "POSTPROCESS_SAMPLING",
]  # fmt: skip


@dataclass(frozen=True)
class AgentOptions:
    """What is special about an agent."""

    obs_with_env: bool = False  # whether it reads what the environment shows, and acts on it
    process_path: str | None = None  # a file with pre_process and post_process
    pre_process_kwargs: dict[str, Any] = field(default_factory=dict)
    post_process_kwargs: dict[str, Any] = field(default_factory=dict)
    env_path: str | tuple[str, ...] = ()  # file.py:Class
    train_cycle: Count | None = None  # steps for which one agent trains before the next one does
    share_instance: CountFromZero | None = None  # the agent_group whose model this one uses, too


@dataclass(frozen=True)
class Node:
    """One step of siiRL's training, and the agent it is for."""

    node_id: str
    node_type: NodeType
    node_role: NodeRole = "DEFAULT"
    agent_group: CountFromZero = 0
    dependencies: tuple[str, ...] = ()
    only_forward_compute: bool = False
    config: dict[str, Any] = field(default_factory=dict)
    agent_options: AgentOptions = field(default_factory=AgentOptions)
    executable_ref: str | None = None

    def at(self, *keys: str) -> Path:
        """Where the node, or a key of it, stands."""
        return ("nodes", self.node_id, *keys)

    def option(self, name: str) -> Path:
        return self.at("agent_options", name)

    @property
    def trains(self) -> bool:
        return self.node_type == "MODEL_TRAIN" and not self.only_forward_compute


@dataclass(frozen=True)
class Nodes:
    """A graph as it is written, each node sound by itself."""

    dag_id: str
    nodes: tuple[Node, ...]
    globals: dict[str, Any]

    def playing(self, role: str) -> list[Node]:
        """The nodes with this node_role."""
        return [node for node in self.nodes if node.node_role == role]


def read_nodes(text: str, folder: File, problems: Problems) -> Nodes:
    """The graph of a file; raises a ConfigError with all that is wrong in its keys and values."""
    data = read_graph(text, problems)
    reader = Reader(problems, folder)
    for key in ("dag_id", "nodes"):
        if key not in data:
            problems.add((key,), "missing; a graph needs it")
    raw = data.get("nodes", [])
    if not isinstance(raw, list):
        problems.add(("nodes",), "a list of nodes is wanted")
        raw = []
    nodes = [_node(place, one, reader) for place, one in enumerate(_distinct(raw, problems))]
    dag_id = reader.value(str, data.get("dag_id", ""), ("dag_id",))
    globals_ = reader.value(dict[str, Any], data[GLOBALS], (GLOBALS,)) if data.get(GLOBALS) is not None else {}
    problems.raise_any()
    return Nodes(dag_id, tuple(nodes), globals_)


def _distinct(raw: list[Any], problems: Problems) -> list[Any]:
    """Complain of a second node with the same id; it would answer to the first one's name."""
    first: dict[str, int] = {}
    for place, node in enumerate(raw):
        name = node["node_id"] if isinstance(node, dict) and "node_id" in node else None
        if isinstance(name, str) and name in first:
            there = problems.sources.place(("nodes", str(first[name])))
            problems.add(("nodes", str(place), "node_id"), f"duplicate id: {name} is already a node ({there})")
        elif isinstance(name, str):
            first[name] = place
    return raw


def _node(place: int, raw: Any, reader: Reader) -> Any:
    """One node. From here on its keys go by its id, which says more than its number."""
    at: Path = ("nodes", str(place))
    if isinstance(raw, dict):
        # siiRL takes a key without a value for one that is not there, and a type in any case.
        raw = {key: item for key, item in raw.items() if item is not None}
        raw |= {key: raw[key].upper() for key in ("node_type", "node_role") if isinstance(raw.get(key), str)}
        if isinstance(raw.get("agent_options"), dict):
            raw["agent_options"] = {key: item for key, item in raw["agent_options"].items() if item is not None}
        if isinstance(raw.get("node_id"), str):
            at = ("nodes", raw["node_id"])
            _rename(reader.problems, ("nodes", str(place)), at)
    return reader.value(Node, raw, at)


def _rename(problems: Problems, old: Path, new: Path) -> None:
    places = problems.sources.places
    for path in [path for path in places if path[: len(old)] == old]:
        places.setdefault((*new, *path[len(old) :]), places[path])
