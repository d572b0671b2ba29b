"""LoRA routing: which tokens of a packed forward use which adapter, and the sum of their LoRA deltas for inference."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from coterie.kernels.matmul import SKINNY_ROWS

Segment = tuple[int, int, str | None]  # start, end, adapter: these tokens of the stream use it
Columns = tuple[tuple[str, int], ...]  # adapters and their ranks, in the order of their columns


@dataclass(eq=False)
class LoraPair:
    """An adapter's two matrices on one linear layer (lora_A and lora_B): x ↦ x·downᵀ·upᵀ·scale."""

    down: nn.Parameter  # [rank, in]
    up: nn.Parameter  # [out, rank]
    scale: float


class Routing:
    """The adapters of the running forward's tokens; shared by all layers of a base."""

    def __init__(self) -> None:
        self.segments: Sequence[Segment] = ()
        self.names: list[str] = []  # the adapters of this forward, each once
        self.masks: dict[Columns, Tensor] = {}

    @contextmanager
    def on(self, segments: Sequence[Segment]) -> Iterator[None]:
        """Route tokens inside the block. Put it around `backward` too: gradient checkpointing reruns layers there."""
        before = self.segments, self.names, self.masks
        self.segments, self.masks = [s for s in segments if s[2] is not None], {}
        self.names = sorted({name for _, _, name in segments if name is not None})
        try:
            yield
        finally:
            self.segments, self.names, self.masks = before

    def mask(self, columns: Columns, like: Tensor) -> Tensor:
        """1 where a token uses the adapter of a column: [Σ ranks, T]."""
        if columns not in self.masks:
            adapters = [""] * like.shape[1]
            for start, end, name in self.segments:
                adapters[start:end] = [name or ""] * (end - start)
            rows = {name: [float(other == name) for other in adapters] for name, _ in columns}
            ranks = torch.tensor([rank for _, rank in columns])
            mask = torch.tensor([rows[name] for name, _ in columns]).repeat_interleave(ranks, dim=0)
            self.masks[columns] = mask.to(like)
        return self.masks[columns]


def slices(sizes: Sequence[int]) -> list[slice]:
    """The slices of consecutive pieces of these sizes."""
    return [slice(start, end) for start, end in pairwise(accumulate(sizes, initial=0))]


class LayerWithAdapters(Protocol):
    pairs: dict[str, LoraPair]
    out_features: int


class ConcatenatedLora:
    """All adapters of some layers concatenated into one matrix; rebuilt when a weight has changed."""

    def __init__(self, layers: Sequence[LayerWithAdapters]) -> None:
        self.layers = layers
        self.pairs: list[LoraPair] = []
        self.versions: list[int] = []
        self.down = torch.empty(0)  # [Σ ranks, in], layer by layer
        self.ups: list[tuple[slice, slice, Tensor]] = []  # outputs, columns, [out, Σ ranks] times scale
        self.columns: Columns = ()

    def rebuild(self, names: Sequence[str], dtype: torch.dtype) -> None:
        """Copy the weights, unless the copies are current."""
        pairs = [layer.pairs[name] for layer in self.layers for name in names if name in layer.pairs]
        versions = [pair.down._version + pair.up._version for pair in pairs]
        if versions == self.versions and pairs == self.pairs:
            return
        self.pairs, self.versions = pairs, versions
        by_layer = [[(name, layer.pairs[name]) for name in names if name in layer.pairs] for layer in self.layers]
        self.columns = tuple((name, len(pair.down)) for own in by_layer for name, pair in own)
        self.down = torch.cat([pair.down for pair in pairs]).to(dtype) if pairs else torch.empty(0)
        outs = slices([layer.out_features for layer in self.layers])
        columns = slices([sum(len(pair.down) for _, pair in own) for own in by_layer])
        self.ups = [
            (here, read, torch.cat([pair.up * pair.scale for _, pair in own], dim=1).to(dtype))
            for here, read, own in zip(outs, columns, by_layer, strict=True)
            if own
        ]

    def add(self, x: Tensor, out: Tensor, routing: Routing) -> None:
        """Add LoRA deltas in place: all tokens through all adapters in one product, other adapters' columns masked."""
        self.rebuild(routing.names, x.dtype)
        if not self.columns:
            return
        low = torch.mm(self.down, x.t())
        low.mul_(routing.mask(self.columns, low))
        transposed = out.t()
        for outs, columns, up in self.ups:
            transposed[outs].addmm_(up, low[columns])


class LoraMixer:
    """Adds the LoRA deltas of a mixed batch to layers that read the same tokens, without gradient."""

    def __init__(self, layers: Sequence[LayerWithAdapters], routing: Routing) -> None:
        self.layers, self.routing = layers, routing
        self.concatenated = ConcatenatedLora(layers)

    def add(self, x: Tensor, out: Tensor) -> None:
        """x [T, in], out [T, Σ out]; `out` is changed in place. Few tokens go through all adapters at once."""
        if len(self.routing.segments) > 1 and len(x) <= SKINNY_ROWS:
            self.concatenated.add(x, out, self.routing)
            return
        for start, end, name in self.routing.segments:
            at = 0
            for layer in self.layers:
                if name is not None and name in layer.pairs:
                    pair, here = layer.pairs[name], out[start:end, at : at + layer.out_features]
                    low = F.linear(x[start:end], pair.down.to(x.dtype))
                    here.addmm_(low, pair.up.t().to(x.dtype), alpha=pair.scale)
                at += layer.out_features
