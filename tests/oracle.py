"""The oracle: transformers alone, with plain forwards and `generate`, and the adapter merged into the weights."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from coterie.kernels.sampling import BLOCK, Sampler, exponential_noise, rng_key
from coterie.models.base import Base
from coterie.models.lora import Adapter
from coterie.models.lora_routing import LoraPair
from coterie.models.store import load_model
from coterie.types import Engine, Sample, Sampling

Request = tuple[str, list[int], int, Sampling]  # policy, prompt, seed, how
POLICIES: dict[str, str | None] = {"plain": None, "a": "a", "b": "b", "c": "c"}  # of `team_base`
FIRST = 3  # ids below are control tokens


def random_ids(length: int, seed: int) -> list[int]:
    return random.Random(seed).choices(range(FIRST, 384), k=length)


@torch.no_grad()
def random_adapter(base: Base, name: str, rank: int, targets: Sequence[str], seed: int) -> Adapter:
    """An adapter that changes what the model says."""
    adapter = Adapter(name, rank, 2.0 * rank, targets).attach(base.layers, seed)
    draw = torch.Generator().manual_seed(seed + 1)
    for pair in adapter.pairs.values():
        pair.up.copy_(torch.empty(pair.up.shape).normal_(0, 0.05, generator=draw))
    return adapter


def pairs(base: Base, adapter: str) -> dict[str, LoraPair]:
    """An adapter's share in each layer that it touches."""
    return {name: layer.pairs[adapter] for name, layer in base.layers.items() if adapter in layer.pairs}


def ask(engine: Engine, requests: Sequence[Request]) -> list[Sample]:
    """All at once."""

    async def gathered() -> list[Sample]:
        return await asyncio.gather(*(engine.sample(*request) for request in requests))

    return asyncio.run(gathered())


def assert_same(ours: Sequence[Sample], theirs: Sequence[Sample]) -> None:
    for one, other in zip(ours, theirs, strict=True):
        assert (one.ids, one.stop) == (other.ids, other.stop)
        assert one.logprobs == pytest.approx(other.logprobs, abs=1e-4)


class Oracle:
    """A fresh copy of the model, without any part of ours in it."""

    def __init__(self, base: Base, adapter: str | None = None) -> None:
        self.model: Any = load_model(base.folder, torch.float32, base.own_attention).requires_grad_(False)
        self.end_ids = sorted(base.chat.end_ids)
        self.sampler = Sampler(base.vocab_size)
        for layer, pair in pairs(base, adapter).items() if adapter else ():
            self.model.get_parameter(f"{layer}.weight").add_((pair.scale * pair.up.detach() @ pair.down.detach()).cpu())

    def greedy(self, prompts: Sequence[list[int]], max_tokens: int) -> list[tuple[int, ...]]:
        """`generate`, prompts of one length at a time so that none is padded."""
        replies: dict[int, tuple[int, ...]] = {}
        for length in {len(prompt) for prompt in prompts}:
            places = [i for i, prompt in enumerate(prompts) if len(prompt) == length]
            tokens = torch.tensor([prompts[i] for i in places])
            options = {"do_sample": False, "eos_token_id": self.end_ids, "pad_token_id": 0}
            out = self.model.generate(
                tokens, attention_mask=torch.ones_like(tokens), max_new_tokens=max_tokens, **options
            )
            replies |= dict(zip(places, (self._up_to_end(row) for row in out[:, length:].tolist()), strict=True))
        return [replies[i] for i in range(len(prompts))]

    def logprobs(self, prompts: Sequence[list[int]], answers: Sequence[Sequence[int]]) -> list[Tensor]:
        """Of every answer's tokens, in one forward: what pads a row on its right is seen by none of them."""
        rows = [torch.tensor([*prompt, *answer]) for prompt, answer in zip(prompts, answers, strict=True)]
        logprobs = self.model(torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)).logits.log_softmax(-1)
        return [
            logprobs[i, len(prompt) - 1 : len(row) - 1].gather(1, row[len(prompt) :, None])[:, 0]
            for i, (prompt, row) in enumerate(zip(prompts, rows, strict=True))
        ]

    def says(self, prompt: list[int], seed: int, sampling: Sampling) -> tuple[list[int], list[float]]:
        """Token by token from whole forwards, until `max_tokens` or an end token."""
        ids: list[int] = []
        logprobs: list[float] = []
        while len(ids) < sampling.max_tokens and ids[-1:] != self.end_ids:
            logits = self.model(torch.tensor([[*prompt, *ids]])).logits[0, -1]
            chances = distribution(logits, sampling)
            token = self._drawn(chances, rng_key(seed, len(ids))) if sampling.temperature else int(chances.argmax())
            ids.append(token)
            logprobs.append(float(chances[token].log()))
        return ids, logprobs

    def _drawn(self, chances: Tensor, key: int) -> int:
        """A block by its chances, then a token of it by its own."""
        keys, mass = torch.tensor([key], dtype=torch.int32), [part.sum() for part in chances.split(BLOCK)]
        block = int((torch.stack(mass) / exponential_noise(self.sampler.blocks, keys)[0]).argmax())
        tokens = slice(block * BLOCK, (block + 1) * BLOCK)
        return tokens.start + int((chances[tokens] / exponential_noise(self.sampler.tokens[tokens], keys)[0]).argmax())

    def _up_to_end(self, ids: list[int]) -> tuple[int, ...]:
        ends = [i + 1 for i, token in enumerate(ids) if token in self.end_ids]
        return tuple(ids[: ends[0]] if ends else ids)


def distribution(logits: Tensor, sampling: Sampling) -> Tensor:
    """The sampled distribution by definition, [V] → [V]: the top k, of these the smallest set of mass p, normalized."""
    chances = (logits / (sampling.temperature or 1.0)).softmax(-1).tolist()
    order = sorted(range(len(chances)), key=lambda token: -chances[token])[: sampling.top_k or None]
    total, kept, reached = sum(chances[token] for token in order), [], 0.0
    for token in order:
        if reached >= sampling.top_p:
            break
        kept.append(token)
        reached += chances[token] / total
    out = torch.zeros_like(logits)
    out[kept] = torch.tensor([chances[token] for token in kept])
    return out / out.sum()
