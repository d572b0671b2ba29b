"""A rollout worker: an engine and an environment in a process of their own, which play chunks of episodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from coterie.cluster.processes import Place, here
from coterie.cluster.shipment import Shipment
from coterie.config.requirements import require_sandbox
from coterie.learners.distributed import SINGLE_PROCESS
from coterie.rollout.agent import FixedTurns, Players
from coterie.rollout.collector import without_task
from coterie.training.build import build_collector, build_engine, build_env, load_models, open_models
from coterie.training.models import build_adapter, text_players
from coterie.types import Episode

Chunk = Sequence[tuple[Episode, FixedTurns]]


class RolloutWorker:
    """An async actor: its chunks share one event loop, and so one batch of the engine.

    That loop is not in the main thread, so the watchdog is off here: code that blocks it holds up all chunks of the
    worker, until the driver kills it `cluster.patience` seconds after their deadline.
    """

    async def start(self, shipment: Shipment, saved: Path | None) -> tuple[Place, dict[str, str]]:
        """Load the models; returns where this process is, and the hashes of verifiers."""
        config = shipment.unpack()
        env = build_env(config)
        require_sandbox(config, env)
        hashes = open_models(config, env)
        models = load_models(config, saved)
        self.engine = build_engine(models)
        for name, policy in models.config.policies.items():
            build_adapter(models.config, name, policy, models.bases[name])
        self.collector = build_collector(config, env, self.engine, models.bases, SINGLE_PROCESS, text_players(config))
        self.playing = 0
        return here(), hashes

    async def load(self, policy: str, version: int, weights: Mapping[str, np.ndarray]) -> None:
        """Load the new weights of a policy. The KV cache is emptied if nothing is being played."""
        if not self.playing:
            self.engine.clear()
        tensors = {name: torch.tensor(array) for name, array in weights.items()}
        self.engine.weights_changed(policy, version, tensors)

    async def play(self, chunk: Chunk, players: Players) -> list[dict[str, Any]]:
        """Play episodes; returns their fields without the tasks."""
        self.playing += 1
        try:
            await self.collector.play_all(chunk, players)
        finally:
            self.playing -= 1
        return [without_task(episode) for episode, _ in chunk]
