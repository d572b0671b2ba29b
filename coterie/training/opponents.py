"""Self-play against the past: frozen snapshots of policies that play the other seats in a share of the steps.

A snapshot is a frozen policy like any other, in one of `keep` slots that are there from the start: engines speak
with it, checkpoints hold it, and its turns are environment.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from coterie.config import Config
from coterie.engines.router import Router
from coterie.learners.learner import TorchLearner
from coterie.seeds import stable_hash
from coterie.types import Metrics

KEPT = "opponents"  # in a run's memory: how many snapshots were taken so far


def slots(config: Config, policy: str) -> list[str]:
    """The policies that a policy's snapshots play as; a frozen one has none, for its past is its present."""
    if config.opponents is None or config.policies[policy].frozen:
        return []
    return [f"{policy} (past {number})" for number in range(config.opponents.keep)]


def with_slots(config: Config) -> Config:
    """The config with a frozen policy for every slot."""
    past = {name: replace(p, frozen=True) for policy, p in config.policies.items() for name in slots(config, policy)}
    return replace(config, policies=config.policies | past)


def memory_of(config: Config) -> dict[str, Any]:
    """What a fresh run remembers of its opponents."""
    return {} if config.opponents is None else {KEPT: 0}


def assign_roles(config: Config, step: int, memory: Mapping[str, Any], roles: Mapping[str, str]) -> dict[str, str]:
    """Who plays at this step: now and then one role is left to who learns, and snapshots play the others that learn."""
    pool = config.opponents
    draw = random.Random(stable_hash(config.seed, KEPT, step))
    if pool is None or memory[KEPT] == 0 or draw.random() >= pool.share:
        return dict(roles)
    taken = {role: slots(config, policy)[: memory[KEPT]] for role, policy in roles.items()}
    stays = draw.choice([role for role, past in taken.items() if past])
    return {
        role: draw.choice(taken[role]) if taken[role] and role != stays else policy for role, policy in roles.items()
    }


@torch.no_grad()
def remember(
    config: Config, step: int, memory: dict[str, Any], learners: Mapping[str, TorchLearner], engine: Router
) -> Metrics:
    """After the update of a step: take a snapshot of every policy that learns, over the oldest, when one is due."""
    pool = config.opponents
    if pool is None:
        return {}
    if (step + 1) % pool.every == 0:
        for policy in [policy for policy, it in config.policies.items() if not it.frozen]:
            name = slots(config, policy)[memory[KEPT] % pool.keep]
            _copy(learners[policy], learners[name])
            engine.weights_changed(name, learners[name].version)
        memory[KEPT] += 1
    return {"opponents": float(min(memory[KEPT], pool.keep))}


def _copy(source: TorchLearner, target: TorchLearner) -> None:
    for name, parameter in target.parameters().items():
        parameter.copy_(source.parameters()[name])
    target.version = source.version
