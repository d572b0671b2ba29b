"""The sampler: token ids and log-probs from logits, by an exponential race (the Gumbel-max trick).

The noise of a draw depends only on (seed, position, token), so the sampled tokens do not change with the batch they are
sampled in. This is the PyTorch reference; `sampling_triton` draws the same tokens inside a CUDA graph.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from coterie.seeds import mix

WORD = 0xFFFFFFFF
CHUNK = 1 << 18  # logits handled at once, so that they stay in the core's own cache
BLOCK = 512  # tokens; a draw picks a block, then a token in it: most tokens need no noise


def _signed(x: int) -> int:
    return x - (1 << 32) if x >> 31 else x


def rng_key(seed: int, position: int) -> int:
    """The 32-bit RNG key of one draw."""
    return _signed(mix((seed * 0x9E3779B97F4A7C15 + position) & 0xFFFFFFFFFFFFFFFF) & WORD)


def rng_keys(seeds: Sequence[int], positions: Sequence[int], count: int) -> np.ndarray:
    """The keys of `count` successive draws from each position: [R] → [R, count]."""
    first = np.array([seed * 0x9E3779B97F4A7C15 & 0xFFFFFFFFFFFFFFFF for seed in seeds], dtype=np.uint64)
    later = np.array(positions, dtype=np.uint64)[:, None] + np.arange(count, dtype=np.uint64)
    x: Any = first[:, None] + later
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):  # as `mix`
        x = (x ^ (x >> np.uint64(shift))) * np.uint64(factor)
    words: np.ndarray = (x ^ (x >> np.uint64(31))).astype(np.uint32).view(np.int32)
    return words


def _scramble(x: Tensor) -> Tensor:
    """Mix 32-bit words in place; integer products wrap around.

    The arithmetic shift keeps the sign, which costs one bit of 32; clearing it would cost a pass over the vocabulary.
    """
    x.mul_(_signed(0x85EBCA6B))
    return x.bitwise_xor_(x >> 16).mul_(_signed(0xC2B2AE35))


def blockwise_argmax(x: Tensor) -> Tensor:
    """`argmax` of each row, [R, V] → [R]: first the block, then the token in it."""
    block = _reduce_blocks(x.t(), _pairwise_max).argmax(dim=0)
    tokens = _block_tokens(block, x.shape[1])
    return tokens.gather(1, x.gather(1, tokens).argmax(dim=1, keepdim=True))[:, 0]


def _pairwise_max(x: Tensor, dim: int) -> Tensor:
    """`amax` by halving: on column-major logits PyTorch's own takes ten times as long for most numbers of rows."""
    while (length := x.shape[dim]) > 1:
        half = (length + 1) // 2
        x = torch.maximum(x.narrow(dim, 0, half), x.narrow(dim, length - half, half))
    return x.squeeze(dim)


def _reduce_blocks(x: Tensor, reduce: Callable[..., Tensor]) -> Tensor:
    """[V, R] → [blocks, R]; the last block may be shorter."""
    even = len(x) // BLOCK * BLOCK
    blocks = reduce(x[:even].unflatten(0, (-1, BLOCK)), dim=1) if even else x[:0]
    return blocks if even == len(x) else torch.cat([blocks, reduce(x[even:], dim=0)[None]])


def _block_tokens(block: Tensor, vocabulary: int) -> Tensor:
    """The token ids of a block: [R] → [R, BLOCK]; a shorter block repeats its last token."""
    return (block[:, None] * BLOCK + torch.arange(BLOCK, device=block.device)).clamp_(max=vocabulary - 1)


def _words(first: int, end: int, device: torch.device | str) -> Tensor:
    """A pseudo-random word for each number from `first` up or down to `end`, which is excluded."""
    numbers = torch.arange(first, end, 1 if end > first else -1, dtype=torch.int32, device=device)
    return _scramble(_scramble(numbers))


def exponential_noise(words: Tensor, keys: Tensor) -> Tensor:
    """Exponential(1) noise for every draw and word: [R or 1, N], [R] → [R, N].

    Exponential race: argmin(noise / p) = argmax(p / noise) is a sample from p.
    """
    noise = _scramble(words ^ keys[:, None]).bitwise_right_shift_(9)  # 23 bits and a sign
    return noise.float().mul_(2.0**-23).add_(0.5 + 2.0**-24).log_().neg_()  # −log of a uniform number in (0, 1)


class Sampler:
    """Samples one token per row of logits."""

    def __init__(self, vocabulary: int, device: torch.device | str = "cpu") -> None:
        self.tokens = _words(1, vocabulary + 1, device)  # noise words, to be mixed with the key of a draw
        self.blocks = _words(-1, -2 - (vocabulary - 1) // BLOCK, device)

    def __call__(self, logits: Tensor, temperature: Tensor, keys: Tensor) -> tuple[Tensor, Tensor]:
        """Ids, and their log-probs under the sampled distribution: [R, V] → [R], [R]; row- or column-major logits.

        Temperature 0 takes the argmax and reports its log-prob at temperature 1.
        """
        logits, greedy = logits.float(), temperature == 0
        temperature = torch.where(greedy, 1.0, temperature)[:, None]
        top = _pairwise_max(logits, 1)[:, None]
        mass = self._block_mass(logits, top, temperature)
        ids = blockwise_argmax(logits) if bool(greedy.any()) else None
        if ids is None or not bool(greedy.all()):
            drawn = self._draw(logits, top, temperature, mass, keys)
            ids = drawn if ids is None else torch.where(greedy, ids, drawn)
        chosen = (logits.gather(1, ids[:, None]) - top) / temperature
        return ids, chosen[:, 0] - mass.sum(dim=1).log()

    def _block_mass(self, logits: Tensor, top: Tensor, temperature: Tensor) -> Tensor:
        """Unnormalized probability of every block; the likeliest token has mass 1: [R, blocks]."""
        step = max(BLOCK, CHUNK // len(logits) // BLOCK * BLOCK)
        plain, parts = bool((temperature == 1).all()), []
        for part in logits.t().split(step):  # [tokens, R]
            mass = part - top.t()
            parts.append(_reduce_blocks((mass if plain else mass.div_(temperature.t())).exp_(), torch.sum))
        return torch.cat(parts).t()

    def _draw(self, logits: Tensor, top: Tensor, temperature: Tensor, block_mass: Tensor, keys: Tensor) -> Tensor:
        block = (block_mass / exponential_noise(self.blocks, keys)).argmax(dim=1)
        tokens = _block_tokens(block, logits.shape[1])
        mass = ((logits.gather(1, tokens) - top) / temperature).exp_()
        race = mass / exponential_noise(self.tokens[tokens], keys)
        return tokens.gather(1, race.argmax(dim=1, keepdim=True))[:, 0]
