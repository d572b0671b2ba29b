"""From logits to tokens. The noise of a draw depends on (seed, position, token) and on nothing else,
so what is sampled does not change with the batch it was sampled in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from coterie.seeds import mix

WORD = 0xFFFFFFFF
CHUNK = 1 << 18  # logits handled at once: they stay in the core's own cache
BLOCK = 512  # logits


def _signed(x: int) -> int:
    return x - (1 << 32) if x >> 31 else x


def draw_key(seed: int, position: int) -> int:
    """One 32-bit key per draw."""
    return _signed(mix((seed * 0x9E3779B97F4A7C15 + position) & 0xFFFFFFFFFFFFFFFF) & WORD)


def draw_keys(seeds: Sequence[int], positions: Sequence[int], count: int) -> np.ndarray:
    """The keys of `count` draws from each position on: [R] → [R, count]."""
    first = np.array([seed * 0x9E3779B97F4A7C15 & 0xFFFFFFFFFFFFFFFF for seed in seeds], dtype=np.uint64)
    later = np.array(positions, dtype=np.uint64)[:, None] + np.arange(count, dtype=np.uint64)
    x: Any = first[:, None] + later
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):  # as `mix`
        x = (x ^ (x >> np.uint64(shift))) * np.uint64(factor)
    words: np.ndarray = (x ^ (x >> np.uint64(31))).astype(np.uint32).view(np.int32)
    return words


def _scramble(x: Tensor) -> Tensor:
    """Mix 32-bit words in place; integer products wrap around.

    The shift keeps the sign, which costs a bit of 32; to clear it would cost a pass over the vocabulary.
    """
    x.mul_(_signed(0x85EBCA6B))
    return x.bitwise_xor_(x >> 16).mul_(_signed(0xC2B2AE35))


def largest(x: Tensor) -> Tensor:
    """`argmax` of each row, [R, V] → [R]: first the block, then the place in it, for on a CPU only `amax` is fast."""
    width = BLOCK if x.shape[1] % BLOCK == 0 else x.shape[1]
    blocks = x.view(len(x), -1, width)
    block = blocks.amax(dim=2).argmax(dim=1)
    within = blocks[torch.arange(len(x), device=x.device), block].argmax(dim=1)
    return block * width + within


class Sampler:
    """Draws one token per row of logits."""

    def __init__(self, vocabulary: int, device: torch.device | str = "cpu") -> None:
        tokens = torch.arange(1, vocabulary + 1, dtype=torch.int32, device=device)
        self.tokens = _scramble(_scramble(tokens))

    def waits(self, keys: Tensor) -> Tensor:
        """An exponential waiting time for every (draw, token): [R] → [R, V]. Whoever's comes first, weighted by
        its probability, is drawn."""
        noise = _scramble(self.tokens ^ keys[:, None]).bitwise_right_shift_(9)  # 23 bits and a sign
        return noise.float().mul_(2.0**-23).add_(0.5 + 2.0**-24).log_().neg_()  # of numbers inside (0, 1)

    def __call__(self, logits: Tensor, temperature: Tensor, keys: Tensor) -> tuple[Tensor, Tensor]:
        """Ids and their log-probs under the distribution that was sampled: [R, V] → [R], [R].

        Temperature 0 takes the likeliest token and reports its log-prob at temperature 1.
        """
        step = max(1, CHUNK // logits.shape[1])
        parts = [
            self._draw(logits[i : i + step].float(), temperature[i : i + step], keys[i : i + step])
            for i in range(0, len(logits), step)
        ]
        return torch.cat([ids for ids, _ in parts]), torch.cat([logprobs for _, logprobs in parts])

    def _draw(self, logits: Tensor, temperature: Tensor, keys: Tensor) -> tuple[Tensor, Tensor]:
        greedy = temperature == 0
        mass = logits - logits.amax(dim=1, keepdim=True)
        mass = mass.div_(torch.where(greedy, 1.0, temperature)[:, None]).exp_()
        total = mass.sum(dim=1)
        if bool(greedy.all()):
            ids = largest(mass)
        else:
            drawn = largest(mass / self.waits(keys))
            ids = torch.where(greedy, largest(mass), drawn) if bool(greedy.any()) else drawn
        return ids, mass.gather(1, ids[:, None])[:, 0].log() - total.log()


def keep_likely(logits: Tensor, top_p: Tensor, top_k: Tensor, temperature: Tensor) -> Tensor:
    """Minus infinity for tokens outside the k likeliest (0: all) or, of these, outside the smallest set of mass p.

    Temperature 0 is taken as 1, as in the log-probs.
    """
    ordered, order = logits.float().sort(dim=1, descending=True)
    most = torch.where(top_k > 0, top_k, logits.shape[1])
    out = torch.arange(logits.shape[1], device=logits.device) >= most[:, None]
    scaled = ordered / torch.where(temperature == 0, 1.0, temperature)[:, None]
    mass = scaled.masked_fill_(out, -torch.inf).softmax(dim=1)
    out |= mass.cumsum(dim=1) - mass >= top_p[:, None]
    out[:, 0] = False
    return logits.masked_fill(out.scatter(1, order, out), -torch.inf)
