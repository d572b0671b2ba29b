"""Lets an engine answer many prompts at once, and checks what it said."""

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


def play(
    engine: NativeEngine, policies: Sequence[str], asked: Sequence[Ids], limits: Sequence[int], heat: float = 1.0
) -> list[Sample]:
    """All prompts at once; the policies take turns."""

    async def all_at_once() -> list[Sample]:
        return await asyncio.gather(
            *(
                engine.sample(policies[i % len(policies)], prompt, i, Sampling(limit, heat))
                for i, (prompt, limit) in enumerate(zip(asked, limits, strict=True))
            )
        )

    return asyncio.run(all_at_once())


def count(said: Sequence[Ids], limits: Sequence[int]) -> int:
    """The tokens that were asked for; it has to be all of them."""
    if any(len(ids) < limit for ids, limit in zip(said, limits, strict=True)):
        raise RuntimeError("an answer is shorter than it should be")
    return sum(limits)


def gap(engine: NativeEngine, policy: str, asked: Sequence[Ids], most: int) -> float:
    """How far the engine's log-probs are from those that a learner on the bare base computes, on average."""
    said = play(engine, [policy], asked, [most] * len(asked))
    engine.clear()
    batch = batch_of([(prompt, sample.ids) for prompt, sample in zip(asked, said, strict=True)])
    learner = TorchLearner(policy, engine.base, None, 1e-4, Learning(), 1, frozen=True)
    heard = torch.tensor([logprob for sample in said for logprob in sample.logprobs])
    return float((learner.logprobs(batch)[batch.mask] - heard).abs().mean())
