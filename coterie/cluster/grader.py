"""Graders: rollout workers without a model, for nodes without GPUs. Workflow, environment and sandboxes run there.

Each grader owns some samplers, and samples a turn by a remote call to one of them. The seed is part of the call, so the
tokens are the same as in one process.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import ray
from ray.exceptions import RayError, RayTaskError

from coterie.cluster.processes import Place, describe_loss, raised_by_code
from coterie.cluster.rollout_worker import Chunk, RolloutWorker, Sampler
from coterie.cluster.shipment import Shipment
from coterie.rollout.agent import Players
from coterie.types import Engine, OnTokens, Sample, Sampling, Weights

# The number of the sampler of the running chunk: its episodes share prompts, and so the sampler's KV cache.
SAMPLER: ContextVar[int] = ContextVar("sampler")


class Grader(RolloutWorker):
    """Plays episodes with remote samplers. If a sampler is lost, this process exits; the driver then plays its chunks
    elsewhere and starts another grader."""

    async def open_engines(self, shipment: Shipment, saved: Path | None, sets: int) -> Sequence[Engine]:
        """Start the samplers; they end with this process, which owns them."""
        cluster = shipment.unpack().cluster
        assert cluster is not None and cluster.graders is not None
        actor = ray.remote(Sampler).options(scheduling_strategy="SPREAD", **cluster.rollout.resources)
        self.samplers: list[Any] = [actor.remote() for _ in range(cluster.samplers_per_grader)]
        self.places: list[Place | None] = [None] * len(self.samplers)
        self.places = await self.ask_all("start", shipment, saved, sets)
        self.chunks = [0] * len(self.samplers)  # chunks that each samples for now
        return [RemoteEngine(self, number) for number in range(sets)]

    async def load(self, number: int, policy: str, version: int, weights: Mapping[str, np.ndarray]) -> None:
        """Let all samplers load the new weights of a policy."""
        await self.ask_all("load", number, policy, version, ray.put(weights))

    async def play(self, number: int, chunk: Chunk, players: Players) -> list[dict[str, Any]]:
        """Play episodes, all of them with the sampler that has the fewest chunks."""
        sampler = self.chunks.index(min(self.chunks))
        SAMPLER.set(sampler)
        self.chunks[sampler] += 1
        try:
            return await self.play_chunk(number, chunk, players)
        finally:
            self.chunks[sampler] -= 1

    async def ask_all(self, method: str, *arguments: Any) -> list[Any]:
        return await asyncio.gather(*(self.ask(which, method, *arguments) for which in range(len(self.samplers))))

    async def ask(self, which: int, method: str, *arguments: Any) -> Any:
        """Call a method of a sampler; if the sampler is lost, exit."""
        call = getattr(self.samplers[which], method).remote(*arguments)
        try:
            return await call
        except asyncio.CancelledError:
            ray.cancel(call)
            raise
        except RayError as error:
            if isinstance(error, RayTaskError):  # the sampler is alive: its code raised, or an object is lost
                raise raised_by_code(error) or error from error
            print(describe_loss(f"sampler {which}", self.places[which], error), file=sys.stderr, flush=True)
            os._exit(1)


@dataclass(frozen=True)
class RemoteEngine:
    """One set of weights in the samplers of a grader."""

    grader: Grader
    number: int

    async def sample(
        self, policy: str, prompt_ids: Sequence[int], seed: int, sampling: Sampling, on_tokens: OnTokens | None = None
    ) -> Sample:
        sample: Sample = await self.grader.ask(
            SAMPLER.get(), "sample", self.number, policy, tuple(prompt_ids), seed, sampling
        )
        return sample

    def weights_changed(self, policy: str, version: int, weights: Weights | None = None) -> None:
        """Nothing to do: `Grader.load` sends new weights to the samplers."""

    def clear(self) -> None:
        """Nothing to do: samplers clear their KV caches before they load weights."""
