"""Decode steps: one more token for every row. `EagerDecoder` runs on any device; `cuda_graphs` is the fast path."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from coterie.engines.native.kv_cache import DecodeLayout, KVCache, PrefillLayout
from coterie.engines.native.slots import Row
from coterie.kernels.matmul import SKINNY_ROWS
from coterie.kernels.sampling import Sampler, rng_key
from coterie.kernels.top_p_top_k import top_k_top_p
from coterie.models.base import Base
from coterie.models.lora_routing import Segment

Tokens = tuple[Sequence[int], Sequence[float]]  # ids and their log-probs


class Decoder(Protocol):
    prefill_tokens: int  # prompt tokens per prefill forward (chunked prefill)
    admit_together: int  # rows to admit together, where more wait than fit
    compact: bool  # True if running rows must have the first slots of the cache

    def weights_changed(self) -> None:
        """Weights have changed in place."""

    def prefill(self, rows: Sequence[Row], counts: Sequence[int]) -> None:
        """Compute the keys and values of the next `counts` prompt tokens of each row."""

    def decode(self, rows: Sequence[Row], meanwhile: Callable[[], None]) -> list[Tokens]:
        """At least one token for each row.

        A decoder whose steps run asynchronously calls `meanwhile` before its host sync; GPU work that it launches is
        queued behind the steps.
        """


class EagerDecoder:
    """One token per step, without CUDA graphs."""

    prefill_tokens = 2048
    admit_together = 1
    compact = True  # attention reads one contiguous piece of the cache

    def __init__(self, base: Base, cache: KVCache, sampler: Sampler) -> None:
        self.base, self.cache, self.sampler = base, cache, sampler

    def weights_changed(self) -> None:
        """Every step reads the current weights."""

    @torch.inference_mode()
    def prefill(self, rows: Sequence[Row], counts: Sequence[int]) -> None:
        layout = PrefillLayout(self.cache, [row.slot for row in rows], [row.computed for row in rows], counts)
        ids = torch.from_numpy(prompt_tokens(rows, counts)).to(self.base.device)
        self.base.hidden_for_inference(ids, layout.positions, layout, segments([row.adapter for row in rows], counts))

    @torch.inference_mode()
    def decode(self, rows: Sequence[Row], meanwhile: Callable[[], None]) -> list[Tokens]:
        if len(rows) > SKINNY_ROWS:  # fewer rows: each goes through all adapters, so their order does not matter
            rows = sorted(rows, key=lambda row: row.adapter or "")
        layout = DecodeLayout(self.cache, [row.slot for row in rows], [row.length - 1 for row in rows])
        tokens = torch.tensor([row.ids[row.length - 1] for row in rows], device=self.base.device)
        runs = segments([row.adapter for row in rows], [1] * len(rows))
        hidden = self.base.hidden_for_inference(tokens, layout.positions, layout, runs)
        ids, logprobs = self._sample(rows, self.base.logits(hidden))
        by_slot = {row.slot: ([token], [logprob]) for row, token, logprob in zip(rows, ids, logprobs, strict=True)}
        return [by_slot[slot] for slot in range(len(rows))]

    def _sample(self, rows: Sequence[Row], logits: Tensor) -> tuple[list[int], list[float]]:
        device = logits.device
        temperature = torch.tensor([row.sampling.temperature for row in rows], device=device)
        truncated = [i for i, row in enumerate(rows) if row.truncates]
        if truncated:
            own = [rows[i].sampling for i in truncated]
            top_p = torch.tensor([s.top_p for s in own], device=device)
            top_k = torch.tensor([s.top_k for s in own], device=device)
            logits[truncated] = top_k_top_p(logits[truncated], top_p, top_k, temperature[truncated])
        keys = [rng_key(row.seed, row.length - row.prompt) for row in rows]
        ids, logprobs = self.sampler(logits, temperature, torch.tensor(keys, dtype=torch.int32, device=device))
        return ids.tolist(), logprobs.tolist()


def prompt_tokens(rows: Sequence[Row], counts: Sequence[int]) -> np.ndarray:
    """The next `counts` tokens of each row, packed."""
    ids = [row.ids[row.computed : row.computed + count] for row, count in zip(rows, counts, strict=True)]
    return np.concatenate(ids)


def segments(adapters: Sequence[str | None], counts: Sequence[int]) -> list[Segment]:
    """Merge adjacent runs of one adapter: (a, a, b), (1, 2, 1) → (0, 3, a), (3, 4, b)."""
    runs: list[Segment] = []
    at = 0
    for adapter, count in zip(adapters, counts, strict=True):
        start = runs.pop()[0] if runs and runs[-1][2] == adapter else at
        at += count
        runs.append((start, at, adapter))
    return runs
