"""From logits to tokens. The noise of a draw depends on (seed, position, token) and on nothing else,
so what is sampled does not change with the batch it was sampled in."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from coterie.seeds import mix

WORD = 0xFFFFFFFF
CHUNK = 1 << 18  # logits handled at once: they stay in the core's own cache
BLOCK = 512  # tokens; a draw is first of a block, then of a token in it: so most of them need no noise


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
    """`argmax` of each row, [R, V] → [R]: first the block, then the place in it."""
    block = _by_block(x.t(), _most).argmax(dim=0)
    tokens = _tokens(block, x.shape[1])
    return tokens.gather(1, x.gather(1, tokens).argmax(dim=1, keepdim=True))[:, 0]


def _most(x: Tensor, dim: int) -> Tensor:
    """`amax`, by halves: where logits lie token by token, PyTorch's own takes ten times as long for most numbers of
    rows."""
    while (length := x.shape[dim]) > 1:
        half = (length + 1) // 2
        x = torch.maximum(x.narrow(dim, 0, half), x.narrow(dim, length - half, half))
    return x.squeeze(dim)


def _by_block(x: Tensor, reduce: Callable[..., Tensor]) -> Tensor:
    """[V, R] → [blocks, R]; the last block may be shorter."""
    even = len(x) // BLOCK * BLOCK
    blocks = reduce(x[:even].unflatten(0, (-1, BLOCK)), dim=1) if even else x[:0]
    return blocks if even == len(x) else torch.cat([blocks, reduce(x[even:], dim=0)[None]])


def _tokens(block: Tensor, vocabulary: int) -> Tensor:
    """Those of a block: [R] → [R, BLOCK]; a shorter one repeats its last."""
    return (block[:, None] * BLOCK + torch.arange(BLOCK, device=block.device)).clamp_(max=vocabulary - 1)


def _words(first: int, end: int, device: torch.device | str) -> Tensor:
    """Of the numbers from the first to before the end, up or down."""
    numbers = torch.arange(first, end, 1 if end > first else -1, dtype=torch.int32, device=device)
    return _scramble(_scramble(numbers))


def waits(words: Tensor, keys: Tensor) -> Tensor:
    """An exponential waiting time for every draw and word: [R or 1, N], [R] → [R, N]. Whose comes first, weighted by
    its probability, is drawn."""
    noise = _scramble(words ^ keys[:, None]).bitwise_right_shift_(9)  # 23 bits and a sign
    return noise.float().mul_(2.0**-23).add_(0.5 + 2.0**-24).log_().neg_()  # of numbers inside (0, 1)


class Sampler:
    """Draws one token per row of logits."""

    def __init__(self, vocabulary: int, device: torch.device | str = "cpu") -> None:
        self.tokens = _words(1, vocabulary + 1, device)  # a word for each, to be mixed with the key of a draw
        self.blocks = _words(-1, -2 - (vocabulary - 1) // BLOCK, device)

    def __call__(self, logits: Tensor, temperature: Tensor, keys: Tensor) -> tuple[Tensor, Tensor]:
        """Ids and their log-probs under the distribution that was sampled: [R, V] → [R], [R]. The logits may lie in
        memory row by row or token by token.

        Temperature 0 takes the likeliest token and reports its log-prob at temperature 1.
        """
        logits, greedy = logits.float(), temperature == 0
        heat = torch.where(greedy, 1.0, temperature)[:, None]
        top = _most(logits, 1)[:, None]
        sums = self._sums(logits, top, heat)
        ids = largest(logits) if bool(greedy.any()) else None
        if ids is None or not bool(greedy.all()):
            drawn = self._draw(logits, top, heat, sums, keys)
            ids = drawn if ids is None else torch.where(greedy, ids, drawn)
        chosen = (logits.gather(1, ids[:, None]) - top) / heat
        return ids, chosen[:, 0] - sums.sum(dim=1).log()

    def _sums(self, logits: Tensor, top: Tensor, heat: Tensor) -> Tensor:
        """The mass of every block, where the likeliest token has mass 1: [R, blocks]."""
        step = max(BLOCK, CHUNK // len(logits) // BLOCK * BLOCK)
        plain, parts = bool((heat == 1).all()), []
        for part in logits.t().split(step):  # [tokens, R]
            mass = part - top.t()
            parts.append(_by_block((mass if plain else mass.div_(heat.t())).exp_(), torch.sum))
        return torch.cat(parts).t()

    def _draw(self, logits: Tensor, top: Tensor, heat: Tensor, sums: Tensor, keys: Tensor) -> Tensor:
        block = (sums / waits(self.blocks, keys)).argmax(dim=1)
        tokens = _tokens(block, logits.shape[1])
        mass = ((logits.gather(1, tokens) - top) / heat).exp_()
        return tokens.gather(1, (mass / waits(self.tokens[tokens], keys)).argmax(dim=1, keepdim=True))[:, 0]
