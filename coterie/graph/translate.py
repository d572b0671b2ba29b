"""A graph and its script → a config of ours, each key with the line or the override that it comes from."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from coterie.config.problems import Problems
from coterie.graph.check import check_nodes
from coterie.graph.draft import Draft
from coterie.graph.learning import learning
from coterie.graph.node import read_nodes
from coterie.graph.playing import playing
from coterie.graph.script import in_globals, split
from coterie.graph.settle import settle


def translate(text: str, file: Path, overrides: Sequence[str], problems: Problems) -> tuple[dict[str, Any], list[str]]:
    """The config's tree, and the overrides that are keys of ours; raises a ConfigError with all that is wrong.

    What siiRL knows and nothing here corresponds to, such as how many GPUs there are, is told on stderr.
    """
    script, rest = split(overrides, problems)
    graph = read_nodes(text, file.parent, problems)
    check_nodes(graph, problems)
    draft = Draft(graph, in_globals(graph.globals, problems) | script, file.parent, problems)
    by_node = settle(draft)
    playing(draft)
    learning(draft, by_node)
    if draft.sheet.get("env", "train") is None and not any(override.startswith("env") for override in rest):
        problems.found.append(f"env.train: missing; data.train_files=FILE says where the tasks are ({file})")
    problems.raise_any()
    if draft.unused:
        print(f"{file}: without effect here: {', '.join(sorted(draft.unused))}", file=sys.stderr)
    return draft.sheet.tree, rest
