"""YAML text to plain data and back, with the line of every key.

Scalars follow YAML 1.2: `1e-4` is a number, `no` and `2026-11-01` are text. Keys are always text. The merge key
`<<: *anchor` of YAML 1.1 works.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import yaml

from coterie.config.problems import OVERRIDE, ConfigError, Path, Problems, dotted, is_dotted, shortened, undotted

MERGE = "<<"
MAX_DEPTH = 50  # nested collections; composing YAML is recursive, and a config has about six
MAX_VALUES = 100_000  # anchors inside anchors multiply
MAX_DIGITS = 4000  # Python's limit for reading an integer
NULL, BOOL, INT, FLOAT, TEXT = (f"tag:yaml.org,2002:{kind}" for kind in ("null", "bool", "int", "float", "str"))
SCALARS = {
    NULL: (r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    BOOL: (r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    INT: (r"[-+]?[0-9]+", list("-+0123456789")),
    FLOAT: (r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?", list("-+.0123456789")),
}
READ: dict[str, Callable[[str], Any]] = {
    NULL: lambda text: None,
    BOOL: lambda text: text.lower() == "true",
    INT: int,
    FLOAT: float,
    TEXT: str,
}
GROUPS = tuple(f"tag:yaml.org,2002:{kind}" for kind in ("map", "seq"))


class Loader(yaml.SafeLoader):
    """Reads scalars as listed above and no others."""


class Dumper(yaml.SafeDumper):
    """Quotes text that the loader would read as a number, a boolean or null."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


for side in (Loader, Dumper):
    side.yaml_implicit_resolvers = {}
    for tag, (pattern, first) in SCALARS.items():
        side.add_implicit_resolver(tag, re.compile(f"^(?:{pattern})$"), first)


def write(data: Any) -> str:
    """Plain data as YAML, in the order it has."""
    return yaml.dump(data, Dumper=Dumper, sort_keys=False, allow_unicode=True, width=120)


def read(text: str, problems: Problems) -> Any:
    """The file's data; the line of each key goes into `problems.sources`."""
    try:
        root = composed(text)
    except yaml.YAMLError as error:
        line, why = _trouble(error, text)
        raise ConfigError(f"{problems.sources.file}: not YAML on line {line}: {why}") from error
    return {} if root is None else Tree(problems).value(root, ())


def composed(text: str) -> yaml.Node | None:
    """The root node. Parsing events is not recursive, so the depth is checked before composing could overflow."""
    depth = 0
    for event in yaml.parse(text, Loader=Loader):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > MAX_DEPTH:
            mark: Any = event.start_mark  # libyaml's has a class of its own
            raise yaml.MarkedYAMLError(problem=f"nested more than {MAX_DEPTH} deep", problem_mark=mark)
    return yaml.compose(text, Loader=Loader)


def _trouble(error: yaml.YAMLError, text: str) -> tuple[int, str]:
    """The line and the message of a YAML error."""
    if isinstance(error, yaml.MarkedYAMLError):
        mark = error.problem_mark or error.context_mark
        return mark.line + 1 if mark else 1, str(error.problem or error.context)
    assert isinstance(error, yaml.reader.ReaderError)  # there are no others
    return text.count("\n", 0, error.position) + 1, f"the character U+{error.character:04X} is not allowed there"


def override(tree: dict[str, Any], text: str, problems: Problems) -> None:
    """Set one key, as in `policies.solver.lr=1e-4`; the value is YAML."""
    key, equals, value = text.partition("=")
    path = undotted(key.strip())
    if not equals or not is_dotted(key.strip()):
        meant = f"; did you mean {dotted(path)}={value}?" if equals and path else ""
        looks = "an override looks like key=value or group.key=value"
        problems.found.append(f"override {shortened(text)}: {looks}{shortened(meant)}")
        return
    place = f"{OVERRIDE}{shortened(text)}"
    inside = _open(tree, path, problems, place)
    if inside is not None:
        problems.sources.forget(path)
        problems.sources.places[path] = place
        inside[path[-1]] = _parse(value, path, problems, place)


def _open(tree: dict[str, Any], path: Path, problems: Problems, place: str) -> dict[str, Any] | None:
    """The mapping that holds the last name of `path`; missing mappings on the way are created."""
    for depth, name in enumerate(path[:-1], start=1):
        if name not in tree or tree[name] is None:
            tree[name] = {}
            problems.sources.places[path[:depth]] = place
        if not isinstance(tree[name], dict):
            problems.sources.places[path] = place
            problems.add(path, f"{'.'.join(path[:depth])} is {tree[name]!r}, which has no keys inside")
            return None
        tree = tree[name]
    return tree


def _parse(text: str, path: Path, problems: Problems, place: str) -> Any:
    try:
        node = composed(text)
    except yaml.YAMLError as error:
        problems.refuse(path, f"{shortened(text)!r} is not YAML: {_trouble(error, text)[1]}")
    return None if node is None else Tree(problems, place).value(node, path)


class Tree:
    """Turns nodes into data and records where each key was written: its line, or the override."""

    def __init__(self, problems: Problems, place: str | None = None) -> None:
        self.problems = problems
        self.place = place
        self.around: list[yaml.Node] = []  # the collections around the current node
        self.values = 0  # read so far

    def value(self, node: yaml.Node, path: Path) -> Any:
        self.values += 1
        if self.values > MAX_VALUES:
            many = f"more than {MAX_VALUES:,} values"
            self.problems.refuse(path[:1], f"{many}, through anchors that are used inside each other")
        if node.tag not in (*READ, *GROUPS):
            self.problems.refuse(path, f"unknown tag {node.tag}; remove it")
        if isinstance(node, yaml.CollectionNode):
            return self.collection(node, path)
        if node.tag in SCALARS and not re.fullmatch(SCALARS[node.tag][0], node.value):
            tagged = f"{shortened(node.value)!r} is tagged {node.tag}"
            self.problems.refuse(path, f"{tagged}, which it is not; remove the tag")
        if node.tag == INT and len(node.value) > MAX_DIGITS:
            self.problems.refuse(path, f"a number of {len(node.value):,} digits; at most {MAX_DIGITS:,} are possible")
        return READ[node.tag](node.value)

    def collection(self, node: yaml.CollectionNode, path: Path) -> Any:
        if any(outer is node for outer in self.around):
            self.problems.add(path, "an anchor is used inside itself, which never ends")
            return None
        self.around.append(node)
        try:
            if isinstance(node, yaml.MappingNode):
                return self.mapping(node, path)
            return [self.item(child, (*path, str(index))) for index, child in enumerate(node.value)]
        finally:
            self.around.pop()

    def item(self, node: yaml.Node, path: Path) -> Any:
        self.note(node, path)
        return self.value(node, path)

    def mapping(self, node: yaml.MappingNode, path: Path) -> dict[str, Any]:
        """The mapping's own keys, merged over those of `<<: *anchor`."""
        merged = [value for key, value in node.value if key.value == MERGE]
        own = [(key, value) for key, value in node.value if key.value != MERGE]
        return self.merged(merged, path) | self.own(own, path)

    def merged(self, sources: list[yaml.Node], path: Path) -> dict[str, Any]:
        taken: dict[str, Any] = {}
        for source in sources:
            # The first one in the list wins.
            for one in reversed(source.value if isinstance(source, yaml.SequenceNode) else [source]):
                found = self.value(one, path)
                if isinstance(found, dict):
                    taken |= found
                else:
                    self.problems.add(path, f"{MERGE} merges a mapping, not {found!r}")
        return taken

    def own(self, pairs: list[tuple[yaml.Node, yaml.Node]], path: Path) -> dict[str, Any]:
        data: dict[str, Any] = {}
        lines: dict[str, int] = {}
        for key_node, value_node in pairs:
            key, line = str(key_node.value), key_node.start_mark.line + 1
            if key in lines:
                self.problems.add((*path, key), f"written twice, on lines {lines[key]} and {line}")
                continue
            lines[key] = line
            self.note(key_node, (*path, key))
            data[key] = self.value(value_node, (*path, key))
        return data

    def note(self, node: yaml.Node, path: Path) -> None:
        sources = self.problems.sources
        sources.places[path] = self.place or f"{sources.file}, line {node.start_mark.line + 1}"
