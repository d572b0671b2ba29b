"""Self-play against past snapshots (fictitious self-play): a pool of frozen copies plays other roles in some steps.

A snapshot is an ordinary frozen policy in one of `keep` slots that exist from the start: engines serve it, checkpoints
store it, and its turns are not trained on.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from coterie.config import Config
from coterie.seeds import stable_hash
from coterie.types import Engine, Learner, Metrics

TAKEN = "opponents"  # key in a run's memory: the number of snapshots taken


def slots(config: Config, policy: str) -> list[str]:
    """The names of a policy's snapshot slots; none for a frozen policy."""
    if config.opponents is None or config.policies[policy].frozen:
        return []
    return [f"{policy} (past {number})" for number in range(config.opponents.keep)]


def with_slots(config: Config) -> Config:
    """The config plus a frozen policy for every snapshot that is kept, to play as a past version of a policy."""
    past = {name: replace(p, frozen=True) for policy, p in config.policies.items() for name in slots(config, policy)}
    return replace(config, policies=config.policies | past)


def memory_of(config: Config) -> dict[str, Any]:
    """The initial counter of snapshots, kept in the memory of the run; empty without opponents."""
    return {} if config.opponents is None else {TAKEN: 0}


def assign_roles(config: Config, step: int, memory: Mapping[str, Any], roles: Mapping[str, str]) -> dict[str, str]:
    """The policy of each role at this step. In a `share` of the steps snapshots play all trained roles but one."""
    pool = config.opponents
    draw = random.Random(stable_hash(config.seed, TAKEN, step))
    if pool is None or memory[TAKEN] == 0 or draw.random() >= pool.share:
        return dict(roles)
    snapshots = {role: slots(config, policy)[: memory[TAKEN]] for role, policy in roles.items()}
    stays = draw.choice([role for role, past in snapshots.items() if past])
    return {
        role: draw.choice(snapshots[role]) if snapshots[role] and role != stays else policy
        for role, policy in roles.items()
    }


def snapshot_if_due(
    config: Config, step: int, memory: dict[str, Any], learners: Mapping[str, Learner], engine: Engine
) -> Metrics:
    """After an update: every `every` steps, copy each trained policy over its oldest snapshot."""
    pool = config.opponents
    if pool is None:
        return {}
    if (step + 1) % pool.every == 0:
        for policy in [name for name, settings in config.policies.items() if not settings.frozen]:
            name = slots(config, policy)[memory[TAKEN] % pool.keep]
            learners[name].copy_from(learners[policy])
            engine.weights_changed(name, learners[name].version)
        memory[TAKEN] += 1
    return {"opponents": float(min(memory[TAKEN], pool.keep))}
