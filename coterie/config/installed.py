"""Packages that a config asks for and that come with no plain installation."""

from __future__ import annotations

from importlib.util import find_spec

from coterie.config.config import Config
from coterie.config.problems import Problems


def must_be_installed(config: Config) -> None:
    """Raise a ConfigError that says how to get what is missing, or pass."""
    problems = Problems(config.sources)
    if config.log.wandb is not None and find_spec("wandb") is None:
        problems.add(("log", "wandb"), "wandb is not installed; `pip install -e '.[wandb]'` brings it")
    if config.engine.name == "vllm" and find_spec("vllm") is None:
        problems.add(("engine", "name"), "vllm is not installed; `pip install -e '.[vllm]'` brings it")
    problems.raise_any()
