"""A rollout worker: an engine and an environment in a process of their own, which play chunks of episodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from coterie.cluster.processes import Place, here
from coterie.cluster.shipment import Shipment
from coterie.config import Config
from coterie.config.requirements import require_sandbox
from coterie.learners.distributed import SINGLE_PROCESS
from coterie.rollout.agent import FixedTurns, Players
from coterie.rollout.collector import without_task
from coterie.training.build import Models, build_collector, build_engine, build_env, load_models, open_models
from coterie.training.models import build_adapter, chats_of, text_players, with_local_policies
from coterie.types import Engine, Episode, Sample, Sampling, Weights

Chunk = Sequence[tuple[Episode, FixedTurns]]


@dataclass(frozen=True)
class Renamed:
    """An engine under one set of weights: maps each policy to its name in that set."""

    engine: Engine
    names: Mapping[str, str]

    async def sample(self, policy: str, *arguments: Any, **options: Any) -> Sample:
        return await self.engine.sample(self.names.get(policy, policy), *arguments, **options)

    def weights_changed(self, policy: str, version: int, weights: Weights | None = None) -> None:
        self.engine.weights_changed(self.names.get(policy, policy), version, weights)

    def clear(self) -> None:
        self.engine.clear()


def set_names(config: Config, number: int) -> dict[str, str]:
    """By trained policy: its name in a set of weights; in the first one it has its own."""
    trained = [name for name, policy in with_local_policies(config).policies.items() if not policy.frozen]
    return {name: f"{name} (set {number})" if number else name for name in trained}


def with_copies(models: Models, sets: Sequence[Mapping[str, str]]) -> Models:
    """The models with another adapter on the same base for every policy of these sets."""
    copies = {name: policy for names in sets for policy, name in names.items()}
    policies = models.config.policies | {name: models.config.policies[policy] for name, policy in copies.items()}
    bases = {**models.bases, **{name: models.bases[policy] for name, policy in copies.items()}}
    return Models(replace(models.config, policies=policies), models.pool, bases)


class Sampler:
    """Models and their engine. As an actor it is an async one: requests share one event loop, and so one batch."""

    async def start(self, shipment: Shipment, saved: Path | None, sets: int) -> Place:
        """Load the models, with `sets` copies of the trained weights; returns where this process is."""
        config = shipment.unpack()
        names = [set_names(config, number) for number in range(sets)]
        models = with_copies(load_models(config, saved, weightless=config.engine.name == "vllm"), names[1:])
        engine = build_engine(models)
        for name, policy in models.config.policies.items():
            build_adapter(models.config, name, policy, models.bases[name])
        self.engines: list[Engine] = [Renamed(engine, own) for own in names]
        self.busy = 0
        return here()

    async def load(self, number: int, policy: str, version: int, weights: Mapping[str, np.ndarray]) -> None:
        """Load the new weights of a policy into a set. The KV cache is emptied if nothing is being played."""
        engine = self.engines[number]
        if not self.busy:
            engine.clear()
        engine.weights_changed(policy, version, {name: torch.tensor(array) for name, array in weights.items()})

    async def sample(self, number: int, policy: str, ids: Sequence[int], seed: int, sampling: Sampling) -> Sample:
        """Sample a turn with a set of weights, for a grader."""
        self.busy += 1
        try:
            return await self.engines[number].sample(policy, ids, seed, sampling)
        finally:
            self.busy -= 1


class RolloutWorker:
    """An async actor: its chunks share one event loop, and so one batch of the engine.

    That loop is not in the main thread, so the watchdog is off here: code that blocks it holds up all chunks of the
    worker, until the driver kills it `cluster.patience` seconds after their deadline.
    """

    async def start(self, shipment: Shipment, saved: Path | None, sets: int) -> tuple[Place, dict[str, str]]:
        """Load the models, with `sets` copies of the trained weights; returns where this process is, and the hashes of
        verifiers."""
        config = shipment.unpack()
        self.logprobs_in_loss = config.algorithm.instance.truncate is not None  # of the sampler
        env = build_env(config)
        require_sandbox(config, env)
        hashes = open_models(config, env)
        engines = await self.open_engines(shipment, saved, sets)
        collector = build_collector(config, env, engines[0], {}, SINGLE_PROCESS, text_players(config))
        self.collectors = [replace(collector, engine=engine, chats=chats_of(config)) for engine in engines]
        return here(), hashes

    async def open_engines(self, shipment: Shipment, saved: Path | None, sets: int) -> Sequence[Engine]:
        """The engines of this process, by set of weights."""
        self.sampler = Sampler()
        await self.sampler.start(shipment, saved, sets)
        return self.sampler.engines

    async def load(self, number: int, policy: str, version: int, weights: Mapping[str, np.ndarray]) -> None:
        """Load the new weights of a policy into a set."""
        await self.sampler.load(number, policy, version, weights)

    async def play(self, number: int, chunk: Chunk, players: Players) -> list[dict[str, Any]]:
        """Play episodes with a set of weights; returns their fields without the tasks."""
        if self.logprobs_in_loss and not self.sampler.busy:
            # The KV cache of earlier chunks is rounded as in their batches: if it were reused, log-probs would depend
            # on what else this worker has played.
            self.sampler.engines[number].clear()
        self.sampler.busy += 1
        try:
            return await self.play_chunk(number, chunk, players)
        finally:
            self.sampler.busy -= 1

    async def play_chunk(self, number: int, chunk: Chunk, players: Players) -> list[dict[str, Any]]:
        await self.collectors[number].play_all(chunk, players)
        return [without_task(episode) for episode, _ in chunk]
