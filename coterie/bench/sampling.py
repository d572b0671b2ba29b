"""Samples many prompts at once with an engine, counts tokens, and measures the log-prob gap to the learner."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import torch

from coterie.bench.shapes import batch_of
from coterie.config.settings import Learning
from coterie.engines.native.engine import NativeEngine
from coterie.learners.learner import TorchLearner
from coterie.types import Sample, Sampling

Ids = tuple[int, ...]


def sample_all(
    engine: NativeEngine,
    policies: Sequence[str],
    requests: Sequence[Ids],
    limits: Sequence[int],
    temperature: float = 1.0,
) -> list[Sample]:
    """Sample all prompts concurrently; row i uses policy i modulo their number."""

    async def all_at_once() -> list[Sample]:
        return await asyncio.gather(
            *(
                engine.sample(policies[i % len(policies)], prompt, i, Sampling(limit, temperature))
                for i, (prompt, limit) in enumerate(zip(requests, limits, strict=True))
            )
        )

    return asyncio.run(all_at_once())


def count_tokens(samples: Sequence[Ids], limits: Sequence[int]) -> int:
    """The number of tokens; raises if an answer is shorter than its limit."""
    if any(len(ids) < limit for ids, limit in zip(samples, limits, strict=True)):
        raise RuntimeError("an answer is shorter than its limit")
    return sum(limits)


def logprob_gap(engine: NativeEngine, policy: str, requests: Sequence[Ids], max_tokens: int) -> float:
    """Mean absolute difference between the engine's log-probs and those of a learner on the base without adapters."""
    samples = sample_all(engine, [policy], requests, [max_tokens] * len(requests))
    engine.clear()
    batch = batch_of([(prompt, sample.ids) for prompt, sample in zip(requests, samples, strict=True)])
    learner = TorchLearner(policy, engine.base, None, 1e-4, Learning(), 1, frozen=True)
    sampled = torch.tensor([logprob for sample in samples for logprob in sample.logprobs])
    return float((learner.logprobs(batch)[batch.mask] - sampled).abs().mean())
