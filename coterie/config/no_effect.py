"""Options that would have no effect beside the others of a config."""

from __future__ import annotations

from collections.abc import Iterator

from coterie.config.config import Config
from coterie.config.problems import Path
from coterie.config.settings import EngineConfig, Policy
from coterie.types import Sampling

Found = Iterator[tuple[Path, str]]


def idle_in_training(config: Config) -> Found:
    """Who is evaluated only may be given what matters when it trains."""
    for name, policy in config.policies.items():
        if policy.frozen and policy.lr != Policy().lr:
            yield ("policies", name, "lr"), f"has no effect: {name} is frozen; leave it out"
    if config.checkpoint.best is not None and config.eval.every == 0:
        yield (
            ("checkpoint", "best"),
            "has no effect while eval.every is 0: what is measured only at the end is the best",
        )


def idle_rows(config: Config) -> Found:
    if config.engine.name == "hf" and config.engine.rows != EngineConfig().rows:
        yield ("engine", "rows"), "has no effect: hf speaks one sequence at a time; leave it out"


def idle_sampling(config: Config) -> Found:
    """What `sampling` says is for roles that say nothing themselves."""
    for key in ("max_tokens", "temperature", "stop"):
        everyone = config.roles and all(getattr(role, key) is not None for role in config.roles.values())
        if everyone and getattr(config.sampling, key) != getattr(Sampling(), key):
            yield ("sampling", key), "has no effect: every role has its own"


def empty_targets(config: Config) -> Found:
    for group, several in (("policies", config.policies), ("critics", config.critics)):
        for name, learner in several.items():
            if learner.lora is not None and learner.lora.targets == ():
                yield (group, name, "lora", "targets"), "is empty: an adapter of no layer can learn nothing"
