"""A router for teams with several base models: each policy's requests go to the engine of its base."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from coterie.types import Engine, OnTokens, Sample, Sampling, Weights


class Router:
    """An engine that forwards each request to the engine of its policy."""

    def __init__(self, engines: Mapping[str, Engine]) -> None:
        """`engines` by policy; policies on one base share an engine."""
        self.engines = dict(engines)

    async def sample(
        self,
        policy: str,
        prompt_ids: Sequence[int],
        seed: int,
        sampling: Sampling,
        on_tokens: OnTokens | None = None,
    ) -> Sample:
        return await self.engines[policy].sample(policy, prompt_ids, seed, sampling, on_tokens)

    def weights_changed(self, policy: str, version: int, weights: Weights | None = None) -> None:
        self.engines[policy].weights_changed(policy, version, weights)

    def clear(self) -> None:
        for engine in {id(engine): engine for engine in self.engines.values()}.values():
            engine.clear()
