"""Small real runs: a tiny model, a game, a few steps."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from coterie.config import Config, load
from coterie.games import naming
from coterie.training import checkpoint
from coterie.training.build import build
from coterie.training.loop import Run, train

NAMING = Path(naming.__file__)


def naming_config(model: Path, **changes: Any) -> dict[str, Any]:
    """Two roles, each with an adapter of its own on one tiny model, play the naming game."""
    tree: dict[str, Any] = {
        "steps": 4,
        "tasks_per_step": 2,
        "episodes_per_task": 4,
        "policies": {name: {"model": str(model), "lr": 1e-2, "lora": {"rank": 4}} for name in ("left", "right")},
        "roles": {"left": "left", "right": "right"},
        "workflow": {"name": f"{NAMING}:OneByOne", "order": ["left", "right"]},
        "env": {"name": f"{NAMING}:Naming", "letters": {"left": "e", "right": "a"}},
        "reward": "native",
        "algorithm": {"name": "grpo"},
        "sampling": {"max_tokens": 6},
        "eval": {"tasks": 4},
        "checkpoint": {"every": 1},
        "device": "cpu",
    }
    return tree | changes


def written(tree: Mapping[str, Any], folder: Path) -> Config:
    """The config as a user has it: a file, read strictly."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "config-as-given.yaml"
    path.write_text(yaml.safe_dump(dict(tree), sort_keys=False))
    return load(path)


def started(tree: Mapping[str, Any], folder: Path) -> Run:
    return build(written(tree, folder), folder, console=False)


def trained(tree: Mapping[str, Any], folder: Path) -> Run:
    run = started(tree, folder)
    train(run)
    return run


def resumed(tree: Mapping[str, Any], folder: Path) -> Run:
    run = started(tree, folder)
    checkpoint.resume(run)
    train(run)
    return run
