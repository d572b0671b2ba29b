"""The sampler uses the learner's latest weights, also where adapters are concatenated."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import torch

from coterie.config import Learning
from coterie.engines.native.engine import NativeEngine
from coterie.learners.batch import make_batches
from coterie.learners.learner import TorchLearner
from coterie.models.base import Base
from coterie.types import Batch, Episode, Sampling, Scores, Task, Turn
from tests.oracle import random_adapter, random_ids


def play(engine: NativeEngine) -> list[Episode]:
    """Both adapters and the plain base in the same batch."""

    async def say(i: int) -> Episode:
        policy, prompt = ("a", "b", "base")[i % 3], tuple(random_ids(9 + i, i))
        sample = await engine.sample(policy, prompt, i, Sampling(max_tokens=6))
        turn = Turn(policy, policy, sample.version, 0, prompt, sample.ids, sample.logprobs, 1.0, "", sample.stop)
        turn.advantages = torch.ones(len(sample.ids))
        return Episode(str(i), Task(str(i), "", ""), 0, [turn])

    async def all_at_once() -> list[Episode]:
        return list(await asyncio.gather(*(say(i) for i in range(12))))

    return asyncio.run(all_at_once())


def test_after_every_update_a_mixed_batch_is_sampled_with_the_new_weights(
    model_folder: Callable[[str], Path],
) -> None:
    base = Base(model_folder("llama"))
    targets = ("q_proj", "v_proj", "down_proj")
    adapters = [random_adapter(base, name, 4, targets, seed) for seed, name in enumerate("ab")]
    learners = {a.name: TorchLearner(a.name, base, a, 0.05, Learning(), steps=3) for a in adapters}
    engine = NativeEngine(base, {"a": "a", "b": "b", "base": None})

    def push(scores: Scores, batch: Batch) -> torch.Tensor:
        return -scores.logprobs

    before = None
    for _ in range(3):
        batches = make_batches(play(engine))
        for name, learner in learners.items():
            batch = batches[name]
            gap = (learner.logprobs(batch) - batch.logprobs)[batch.mask].abs().max()
            assert gap < 1e-4
            learner.fit(batch, batch.mask / batch.mask.sum(), push)
            engine.weights_changed(name, learner.version)
        assert before is None or not torch.equal(before, batches["a"].logprobs)
        before = batches["a"].logprobs
