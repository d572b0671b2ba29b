"""Read a graph's YAML into nodes, strictly, with the line of every key; anchors, merges and `!Ref` are resolved."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path as File
from typing import Any, Literal

import yaml

from coterie.config.problems import Path, Problems
from coterie.config.reader import Reader
from coterie.config.yamltree import Loader, Tree, composed
from coterie.errors import did_you_mean
from coterie.limits import Count, CountFromZero

REF, GLOBALS = "!Ref", "global_config"
OWN = ("dag_id", "description", GLOBALS, "nodes")  # the keys of a graph


def is_graph(text: str) -> bool:
    """True for a graph in siiRL's format; False for a config of Coterie or a text that is not YAML."""
    try:
        root = composed(text)
    except yaml.YAMLError:
        return False
    return isinstance(root, yaml.MappingNode) and any(key.value in ("dag_id", "nodes") for key, _ in root.value)


def read_graph(text: str, problems: Problems) -> dict[str, Any]:
    """The keys of the file. Keys that only hold an anchor are dropped: its value is where it is used."""
    root = composed(text)
    assert isinstance(root, yaml.MappingNode), "is_graph comes first"
    tree = GraphTree(problems, _globals(root, problems))
    data = tree.value(root, ())
    anchored = _anchored(text)
    held = {key.value for key, value in root.value if (value.start_mark.line, value.start_mark.column) in anchored}
    for key in [key for key in data if key not in OWN]:
        if key not in held:
            problems.add((key,), f"unknown key; a graph has {', '.join(OWN)}, and keys with an anchor, as in {key}: &x")
        del data[key]
    return dict(data)


class GraphTree(Tree):
    """A `Tree` that resolves `!Ref global_config.a.b`."""

    def __init__(self, problems: Problems, globals: Any) -> None:
        super().__init__(problems)
        self.globals = globals

    def value(self, node: yaml.Node, path: Path) -> Any:
        return self._referred(str(node.value), path) if node.tag == REF else super().value(node, path)

    def _referred(self, target: str, path: Path) -> Any:
        first, *names = target.split(".")
        if first != GLOBALS:
            self.problems.add(path, f"{REF} {target}: a reference begins with {GLOBALS}")
            return None
        found = self.globals
        for name in names:
            if not isinstance(found, dict) or name not in found:
                near = did_you_mean(name, found if isinstance(found, dict) else ())
                self.problems.add(path, f"{REF} {target} refers to nothing{near}")
                return None
            found = found[name]
        return found


def _globals(root: yaml.MappingNode, problems: Problems) -> Any:
    """`global_config`, read first: it may stand below the keys that refer to it."""
    aside = Problems(problems.sources)  # its problems are reported when the whole file is read
    nodes = [value for key, value in root.value if key.value == GLOBALS]
    return GraphTree(aside, {}).value(nodes[0], (GLOBALS,)) if nodes else {}


def _anchored(text: str) -> set[tuple[int, int]]:
    """The positions of values with an anchor."""
    starts = (yaml.ScalarEvent, yaml.CollectionStartEvent)
    events = (event for event in yaml.parse(text, Loader=Loader) if isinstance(event, starts))
    marks = (event.start_mark for event in events if event.anchor is not None)
    return {(mark.line, mark.column) for mark in marks if mark is not None}


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
    """`agent_options` of a node."""

    obs_with_env: bool = False  # it reads the environment's observation and acts on it
    process_path: str | None = None  # a file with pre_process and post_process
    pre_process_kwargs: dict[str, Any] = field(default_factory=dict)
    post_process_kwargs: dict[str, Any] = field(default_factory=dict)
    env_path: str | tuple[str, ...] = ()  # file.py:Class
    train_cycle: Count | None = None  # steps for which one agent trains before the next one does
    share_instance: CountFromZero | None = None  # the agent_group whose model it shares


@dataclass(frozen=True)
class Node:
    """One step of siiRL's training, for the agent of its `agent_group`."""

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
        """The path of the node, or of a key in it."""
        return ("nodes", self.node_id, *keys)

    def option(self, name: str) -> Path:
        return self.at("agent_options", name)

    @property
    def trains(self) -> bool:
        return self.node_type == "MODEL_TRAIN" and not self.only_forward_compute


@dataclass(frozen=True)
class Nodes:
    """The nodes of a graph, each valid by itself."""

    dag_id: str
    nodes: tuple[Node, ...]
    globals: dict[str, Any]

    def with_role(self, role: str) -> list[Node]:
        """The nodes with this node_role."""
        return [node for node in self.nodes if node.node_role == role]


def read_nodes(text: str, folder: File, problems: Problems) -> Nodes:
    """The graph of a file; a ConfigError lists every invalid key and value."""
    data = read_graph(text, problems)
    reader = Reader(problems, folder)
    for key in ("dag_id", "nodes"):
        if key not in data:
            problems.add((key,), "missing; a graph needs it")
    raw = data.get("nodes", [])
    if not isinstance(raw, list):
        problems.add(("nodes",), "expected a list of nodes")
        raw = []
    nodes = [_node(place, one, reader) for place, one in enumerate(_distinct(raw, problems))]
    dag_id = reader.value(str, data.get("dag_id", ""), ("dag_id",))
    globals_ = reader.value(dict[str, Any], data[GLOBALS], (GLOBALS,)) if data.get(GLOBALS) is not None else {}
    problems.raise_any()
    return Nodes(dag_id, tuple(nodes), globals_)


def _distinct(raw: list[Any], problems: Problems) -> list[Any]:
    """Report duplicate node ids."""
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
    """One node. From here on messages name it by its id, not by its index."""
    at: Path = ("nodes", str(place))
    if isinstance(raw, dict):
        # siiRL ignores keys without a value, and the case of types.
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
