"""One more token for every row: the way that runs anywhere."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from coterie.engines.native.kv_cache import Decode, Prefill, SlotCache
from coterie.engines.native.slots import Row
from coterie.kernels.matmul import THIN
from coterie.kernels.sampling import Sampler, draw_key
from coterie.kernels.top_p_top_k import keep_likely
from coterie.models.base import Base
from coterie.models.lora_routing import Segment

Said = tuple[Sequence[int], Sequence[float]]  # ids and their log-probs


class Steps(Protocol):
    chunk: int  # tokens of prompts to read at once
    together: int  # rows that should enter together, where more wait than have room
    gathered: bool  # whether rows must sit in the slots of their places in the list

    def moved(self) -> None:
        """Weights have changed in place."""

    def read(self, rows: Sequence[Row], counts: Sequence[int]) -> None:
        """The next so many tokens of each row, which are known, into the cache."""

    def advance(self, rows: Sequence[Row], meanwhile: Callable[[], None]) -> list[Said]:
        """At least one token for each row.

        Where steps run while the host waits, `meanwhile` is called before it does; what it launches comes after them.
        """


class Eager:
    """Every operation is launched as it comes."""

    chunk = 2048
    together = 1
    gathered = True  # a step reads one piece of the cache

    def __init__(self, base: Base, cache: SlotCache, sampler: Sampler) -> None:
        self.base, self.cache, self.sampler = base, cache, sampler

    def moved(self) -> None:
        """Every step reads the weights anew."""

    @torch.inference_mode()
    def read(self, rows: Sequence[Row], counts: Sequence[int]) -> None:
        layout = Prefill(self.cache, [row.slot for row in rows], [row.computed for row in rows], counts)
        ids = torch.from_numpy(stream(rows, counts)).to(self.base.device)
        self.base.hidden_for_inference(ids, layout.positions, layout, segments([row.adapter for row in rows], counts))

    @torch.inference_mode()
    def advance(self, rows: Sequence[Row], meanwhile: Callable[[], None]) -> list[Said]:
        if len(rows) > THIN:  # so few go through all adapters at once, in any order
            rows = sorted(rows, key=lambda row: row.adapter or "")
        layout = Decode(self.cache, [row.slot for row in rows], [row.length - 1 for row in rows])
        tokens = torch.tensor([row.ids[row.length - 1] for row in rows], device=self.base.device)
        runs = segments([row.adapter for row in rows], [1] * len(rows))
        hidden = self.base.hidden_for_inference(tokens, layout.positions, layout, runs)
        ids, logprobs = self._draw(rows, self.base.logits(hidden))
        said = {row.slot: ([token], [logprob]) for row, token, logprob in zip(rows, ids, logprobs, strict=True)}
        return [said[slot] for slot in range(len(rows))]

    def _draw(self, rows: Sequence[Row], logits: Tensor) -> tuple[list[int], list[float]]:
        device = logits.device
        temperature = torch.tensor([row.sampling.temperature for row in rows], device=device)
        narrow = [i for i, row in enumerate(rows) if row.narrow]
        if narrow:
            picked = [rows[i].sampling for i in narrow]
            top_p = torch.tensor([s.top_p for s in picked], device=device)
            top_k = torch.tensor([s.top_k for s in picked], device=device)
            logits[narrow] = keep_likely(logits[narrow], top_p, top_k, temperature[narrow])
        keys = [draw_key(row.seed, row.length - row.prompt) for row in rows]
        ids, logprobs = self.sampler(logits, temperature, torch.tensor(keys, dtype=torch.int32, device=device))
        return ids.tolist(), logprobs.tolist()


def stream(rows: Sequence[Row], counts: Sequence[int]) -> np.ndarray:
    """The tokens that are to be read, row after row."""
    ids = [row.ids[row.computed : row.computed + count] for row, count in zip(rows, counts, strict=True)]
    return np.concatenate(ids)


def segments(adapters: Sequence[str | None], counts: Sequence[int]) -> list[Segment]:
    """Runs of one adapter: (a, a, b), (1, 2, 1) → (0, 3, a), (3, 4, b)."""
    runs: list[Segment] = []
    at = 0
    for adapter, count in zip(adapters, counts, strict=True):
        start = runs.pop()[0] if runs and runs[-1][2] == adapter else at
        at += count
        runs.append((start, at, adapter))
    return runs
