"""Turns the arguments of `AgentTrainer` into the keys of a config."""

from __future__ import annotations

import copy
import inspect
import json
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

from coterie.compat.rllm.rewards import BUILTIN_REWARDS
from coterie.compat.siirl.nodes import is_graph
from coterie.compat.siirl.translate import translate
from coterie.config import ConfigError, yamltree
from coterie.config.load import read_text, to_plain
from coterie.config.problems import Problems, Sources
from coterie.config.registry import BUILTIN, Kind, find, options_of, replace_functions

AGENT_LOOP = "agent_loop"  # the workflow of one agent with an environment


def check_types(config: Any, overrides: Any) -> None:
    """Reject common mistakes: a config of another type, or a single override instead of a list."""
    if not isinstance(config, str | Path | Mapping):
        raise ConfigError(f"config: got {config!r:.80}, expected the path of a recipe, or a mapping")
    if isinstance(overrides, str):
        raise ConfigError(f"overrides: got the text {overrides!r}, expected a list, as in [{overrides!r}]")


def tree(config: str | Path | Mapping[str, Any]) -> tuple[dict[str, Any], Problems, Path]:
    """The keys of a recipe, a collector for its problems, and the folder that its relative paths start from."""
    if isinstance(config, Mapping):
        problems = Problems(Sources("the config given to AgentTrainer"))
        return copy.deepcopy(replace_functions(config, "config")), problems, Path()
    path = Path(config)
    if not path.is_file():
        raise ConfigError(f"{path}: there is no such file")
    problems = Problems(Sources(str(path)))
    keys = yamltree.read(read_text(path), problems)
    if not isinstance(keys, dict):
        raise ConfigError(f"{path}: a config is a mapping of keys to values")
    return {"name": path.stem, **keys}, problems, path.parent


def is_graph_file(path: Path) -> bool:
    """True if a file is a graph in siiRL's format, not a recipe."""
    return path.is_file() and is_graph(read_text(path))


def graph(
    path: Path, files: Mapping[str, str], overrides: Sequence[str]
) -> tuple[dict[str, Any], Problems, Path, list[str]]:
    """A siiRL graph translated to a config; dataset files become siiRL overrides."""
    keys = {"train": "data.train_files", "test": "data.val_files"}
    datasets = [f"{keys[split]}={json.dumps(file)}" for split, file in files.items()]
    problems = Problems(Sources(str(path)))
    translated, rest = translate(read_text(path), path, [*datasets, *overrides], problems)
    return {"name": path.stem, **translated}, problems, path.parent, rest


def check_graph_arguments(workflow: Any, arguments: Any, files: Any) -> None:
    if workflow is not None or arguments:
        raise ConfigError("workflow: not allowed with a graph, which defines the workflow itself")
    if files is None:
        raise ConfigError("train_dataset: a graph has its own environments; pass a file or rows")


def one_workflow(workflow: Any, workflow_class: Any, agent_class: Any, env_class: Any) -> Any:
    """The workflow, from whichever argument was given; an agent and its environment are the workflow `agent_loop`."""
    if (agent_class is None) != (env_class is None):
        missing = "env_class" if env_class is None else "agent_class"
        raise ConfigError(f"{missing}: missing; an agent and an environment are given together")
    given = {"workflow": workflow, "workflow_class": workflow_class, "agent_class": agent_class}
    several = [name for name, value in given.items() if value is not None]
    if len(several) > 1:
        raise ConfigError(f"{several[1]}: {several[0]} is given, too; one of them says who plays")
    return AGENT_LOOP if agent_class is not None else workflow if workflow_class is None else workflow_class


def agent_options(
    agent_class: Any, env_class: Any, agent_args: Any, env_args: Any, more: Mapping[str, Any] | None
) -> dict[str, Any]:
    """The options of the workflow `agent_loop`."""
    classes = {"agent_class": agent_class, "env_class": env_class}
    named = {name: _name("workflow", cls) for name, cls in classes.items()}
    return {**named, "agent_args": dict(agent_args or {}), "env_args": dict(env_args or {}), **(more or {})}


def without_evaluation(tree: dict[str, Any], files: Mapping[str, str]) -> None:
    """Turn the evaluation off if training rows were given without held-out ones, and the config has none either."""
    held_out = isinstance(tree.get("env"), Mapping) and tree["env"].get("test") is not None
    if "train" in files and not held_out:
        tree["eval"] = {"tasks": 0}


def has_option(tree: Mapping[str, Any], option: str) -> bool:
    """True if the workflow of a config declares an option of this name."""
    return "workflow" in tree and option in options_of(find("workflow", part_tree(tree, "workflow")["name"]))


def row_reward(function: Any) -> dict[str, Any]:
    """A reward function in rLLM's form, `(row, answer)`, as the reward of a config."""
    if (known := BUILTIN_REWARDS.get(function)) is not None:
        return {"name": known}
    name = replace_functions(function, "workflow_args.reward_function")
    return {"name": "row_function", "function": str(name)}


def with_files(tree: Mapping[str, Any], files: Mapping[str, str], workflow: Any = None) -> dict[str, Any]:
    """The config's environment with these dataset files; by default `rows`, or `agent_rows` for an agent's own."""
    default = "agent_rows" if workflow == AGENT_LOOP else "rows"
    return {**(part_tree(tree, "env") if "env" in tree else {"name": default}), **files}


def part_tree(tree: Mapping[str, Any], kind: str) -> dict[str, Any]:
    """A part of the config as a mapping, also where the config has only its name."""
    if kind not in tree:
        raise ConfigError(f"{kind}_args: no effect without a {kind}")
    value = tree[kind]
    return {"name": value} if isinstance(value, str) else dict(value)


def part(kind: Kind, value: Any) -> dict[str, Any]:
    """A name, a class, a function or an instance as a config part."""
    if isinstance(value, str):
        return {"name": value}
    if inspect.isclass(value) or inspect.isfunction(value):
        return {"name": _name(kind, value)}
    if not is_dataclass(value):
        raise ConfigError(f"{kind}: {type(value).__name__} must be a dataclass, so that a run can store its options")
    options = {f.name: getattr(value, f.name) for f in fields(value) if f.name[0] != "_"}
    return {"name": _name(kind, type(value)), **to_plain(replace_functions(options, kind))}


def _name(kind: Kind, part: Any) -> str:
    """How a config names a class or function: built-in parts by name, your own as file.py:Name."""
    known = {place: name for name, place in BUILTIN[kind].items()}
    place = f"{part.__module__}:{part.__qualname__}"
    if place in known:
        return known[place]
    try:
        file = inspect.getsourcefile(part)
    except TypeError:  # defined interactively, without a file
        file = None
    if file is None or not Path(file).is_file() or not part.__qualname__.isidentifier():
        raise ConfigError(f"{kind}: {part.__qualname__} must be at the top level of a file that can be imported")
    return f"{Path(file).resolve()}:{part.__qualname__}"
