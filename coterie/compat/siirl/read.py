"""A graph's YAML as plain data, with the line of every key; anchors, merges and `!Ref` are put in place."""

from __future__ import annotations

from typing import Any

import yaml

from coterie.config.problems import Path, Problems, did_you_mean
from coterie.config.yamltree import Loader, Tree, composed

REF, GLOBALS = "!Ref", "global_config"
OWN = ("dag_id", "description", GLOBALS, "nodes")  # the keys of a graph


def is_graph(text: str) -> bool:
    """Whether a file is a graph and not a config of ours. One that is not even YAML is neither."""
    try:
        root = composed(text)
    except yaml.YAMLError:
        return False
    return isinstance(root, yaml.MappingNode) and any(key.value in ("dag_id", "nodes") for key, _ in root.value)


def read_graph(text: str, problems: Problems) -> dict[str, Any]:
    """The keys of the file; what only holds an anchor is left out, for it has been put where it is used."""
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
    """As `Tree`; besides, `!Ref global_config.a.b` is the value that is there."""

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
    """`global_config` by itself, for it may be written below what refers to it."""
    aside = Problems(problems.sources)  # what is wrong in it is told when the whole file is read
    nodes = [value for key, value in root.value if key.value == GLOBALS]
    return GraphTree(aside, {}).value(nodes[0], (GLOBALS,)) if nodes else {}


def _anchored(text: str) -> set[tuple[int, int]]:
    """Where values with an anchor begin."""
    starts = (yaml.ScalarEvent, yaml.CollectionStartEvent)
    events = (event for event in yaml.parse(text, Loader=Loader) if isinstance(event, starts))
    marks = (event.start_mark for event in events if event.anchor is not None)
    return {(mark.line, mark.column) for mark in marks if mark is not None}
