"""Which tokens run on which adapter, and what adapters add to a layer's output."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from coterie.kernels.matmul import THIN

Segment = tuple[int, int, str | None]  # from, to, adapter: these tokens of the stream run on it
Columns = tuple[tuple[str, int], ...]  # adapters and their ranks, side by side


@dataclass(eq=False)
class Pair:
    """An adapter's share in one linear layer: x ↦ x·downᵀ·upᵀ·scale."""

    down: nn.Parameter  # [rank, in]
    up: nn.Parameter  # [out, rank]
    scale: float


class Routing:
    """Which adapter the tokens of the running forward use; shared by all layers of a base."""

    def __init__(self) -> None:
        self.segments: Sequence[Segment] = ()
        self.names: list[str] = []  # the adapters of this forward, each once
        self.masks: dict[Columns, Tensor] = {}

    @contextmanager
    def on(self, segments: Sequence[Segment]) -> Iterator[None]:
        """Also around `backward`: gradient checkpointing runs the layers again there."""
        before = self.segments, self.names, self.masks
        self.segments, self.masks = [s for s in segments if s[2] is not None], {}
        self.names = sorted({name for _, _, name in segments if name is not None})
        try:
            yield
        finally:
            self.segments, self.names, self.masks = before

    def mask(self, columns: Columns, like: Tensor) -> Tensor:
        """1 where a token runs on the adapter that a column belongs to: [Σ ranks, T]."""
        if columns not in self.masks:
            runs_on = [""] * like.shape[1]
            for start, end, name in self.segments:
                runs_on[start:end] = [name or ""] * (end - start)
            rows = {name: [float(other == name) for other in runs_on] for name, _ in columns}
            ranks = torch.tensor([rank for _, rank in columns])
            mask = torch.tensor([rows[name] for name, _ in columns]).repeat_interleave(ranks, dim=0)
            self.masks[columns] = mask.to(like)
        return self.masks[columns]


def slices(sizes: Sequence[int]) -> list[slice]:
    """Of parts that lie side by side."""
    return [slice(start, end) for start, end in pairwise(accumulate(sizes, initial=0))]


class Adapted(Protocol):
    """A layer with adapters on it."""

    pairs: dict[str, Pair]
    out_features: int


class SideBySide:
    """Copies of all adapters of some layers in one matrix; made again when any of them has changed."""

    def __init__(self, layers: Sequence[Adapted]) -> None:
        self.layers = layers
        self.pairs: list[Pair] = []
        self.versions: list[int] = []
        self.down = torch.empty(0)  # [Σ ranks, in], layer by layer
        self.ups: list[tuple[slice, slice, Tensor]] = []  # outputs, columns, [out, Σ ranks] with its scale
        self.columns: Columns = ()  # whose they are

    def make(self, names: Sequence[str], dtype: torch.dtype) -> None:
        pairs = [layer.pairs[name] for layer in self.layers for name in names if name in layer.pairs]
        versions = [pair.down._version + pair.up._version for pair in pairs]
        if versions == self.versions and pairs == self.pairs:
            return
        self.pairs, self.versions = pairs, versions
        found = [[(name, layer.pairs[name]) for name in names if name in layer.pairs] for layer in self.layers]
        self.columns = tuple((name, len(pair.down)) for some in found for name, pair in some)
        self.down = torch.cat([pair.down for pair in pairs]).to(dtype) if pairs else torch.empty(0)
        outs = slices([layer.out_features for layer in self.layers])
        columns = slices([sum(len(pair.down) for _, pair in some) for some in found])
        self.ups = [
            (here, read, torch.cat([pair.up * pair.scale for _, pair in some], dim=1).to(dtype))
            for here, read, some in zip(outs, columns, found, strict=True)
            if some
        ]

    def add(self, x: Tensor, out: Tensor, routing: Routing) -> None:
        """Every token through all adapters at once, and the others' part put out: out += …"""
        self.make(routing.names, x.dtype)
        if not self.columns:
            return
        low = torch.mm(self.down, x.t())
        low.mul_(routing.mask(self.columns, low))
        turned = out.t()
        for outs, columns, up in self.ups:
            turned[outs].addmm_(up, low[columns])


class Shares:
    """What adapters add to the outputs of layers that read the same tokens, without gradient."""

    def __init__(self, layers: Sequence[Adapted], routing: Routing) -> None:
        self.layers, self.routing = layers, routing
        self.side_by_side = SideBySide(layers)

    def add(self, x: Tensor, out: Tensor) -> None:
        """x [T, in], out [T, Σ out], which is changed."""
        if len(self.routing.segments) > 1 and len(x) <= THIN:
            self.side_by_side.add(x, out, self.routing)
            return
        for start, end, name in self.routing.segments:
            at = 0
            for layer in self.layers:
                if name is not None and name in layer.pairs:
                    pair, here = layer.pairs[name], out[start:end, at : at + layer.out_features]
                    low = F.linear(x[start:end], pair.down.to(x.dtype))
                    here.addmm_(low, pair.up.t().to(x.dtype), alpha=pair.scale)
                at += layer.out_features
