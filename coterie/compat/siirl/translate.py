"""A graph and its script → a config of ours, each key with the line or the override that it comes from."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from coterie.compat.siirl.check import check_nodes
from coterie.compat.siirl.config_draft import Draft
from coterie.compat.siirl.learning import learning
from coterie.compat.siirl.node import read_nodes
from coterie.compat.siirl.parameters import settle
from coterie.compat.siirl.playing import playing
from coterie.compat.siirl.read import is_graph as recognizes
from coterie.compat.siirl.script import in_globals, split
from coterie.config.problems import Problems

__all__ = ["recognizes", "translate"]


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
