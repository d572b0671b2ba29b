"""Which tokens run on which adapter, and what adapters add to a layer's output."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from coterie.models.products import THIN, product

Segment = tuple[int, int, str | None]  # from, to, adapter: these tokens of the stream run on it


@dataclass
class Pair:
    """An adapter's share in one linear layer: x ↦ x·downᵀ·upᵀ·scale."""

    down: nn.Parameter  # [rank, in]
    up: nn.Parameter  # [out, rank]
    scale: float


class Routing:
    """Which adapter the tokens of the running forward use; shared by all layers of a base."""

    def __init__(self) -> None:
        self.segments: Sequence[Segment] = ()
        self.masks: dict[tuple[tuple[str, int], ...], Tensor] = {}

    @contextmanager
    def on(self, segments: Sequence[Segment]) -> Iterator[None]:
        """Also around `backward`: gradient checkpointing runs the layers again there."""
        before = self.segments, self.masks
        self.segments, self.masks = [s for s in segments if s[2] is not None], {}
        try:
            yield
        finally:
            self.segments, self.masks = before

    def names(self) -> list[str]:
        """The adapters of this forward, each once."""
        return list({name: None for _, _, name in self.segments if name is not None})

    def mask(self, columns: tuple[tuple[str, int], ...], like: Tensor) -> Tensor:
        """1 where a token runs on the adapter that a column belongs to: [T, Σ ranks], in the layout of `like`."""
        if columns not in self.masks:
            mask, at = torch.zeros_like(like), 0
            for name, rank in columns:
                for start, end, adapter in self.segments:
                    if adapter == name:
                        mask[start:end, at : at + rank] = 1
                at += rank
            self.masks[columns] = mask
        return self.masks[columns]


class Adapted(Protocol):
    """A layer with adapters on it."""

    pairs: dict[str, Pair]
    out_features: int


class SideBySide:
    """Copies of all adapters of some layers in one matrix; made again when any of them has changed."""

    def __init__(self, layers: Sequence[Adapted]) -> None:
        self.layers = layers
        self.made_of: list[tuple[Pair, int, int]] = []
        self.down = torch.empty(0)  # [Σ ranks, in], layer by layer
        self.ups: list[Tensor] = []  # [out, Σ ranks of this layer], with its scale
        self.columns: tuple[tuple[str, int], ...] = ()  # whose they are

    def make(self, names: Sequence[str], dtype: torch.dtype) -> None:
        found = [[(n, layer.pairs[n]) for n in names if n in layer.pairs] for layer in self.layers]
        made_of = [(pair, pair.down._version, pair.up._version) for pairs in found for _, pair in pairs]
        if _same(made_of, self.made_of):
            return
        self.made_of = made_of
        self.columns = tuple((name, len(pair.down)) for pairs in found for name, pair in pairs)
        downs: list[Tensor] = [pair.down for pairs in found for _, pair in pairs]
        self.down = torch.cat(downs).to(dtype) if downs else torch.empty(0)
        ups = [[pair.up * pair.scale for _, pair in pairs] for pairs in found]
        self.ups = [torch.cat(up, dim=1).to(dtype) if up else torch.empty(0, 0) for up in ups]

    def add(self, x: Tensor, out: Tensor, routing: Routing) -> None:
        """Every token through all adapters at once, and the others' part put out: out += …"""
        self.make(routing.names(), x.dtype)
        if not self.columns:
            return
        low = product(x, self.down)
        low.mul_(routing.mask(self.columns, low))
        at = column = 0
        for layer, up in zip(self.layers, self.ups, strict=True):
            if len(up):
                out[:, at : at + len(up)].addmm_(low[:, column : column + up.shape[1]], up.t())
            at, column = at + layer.out_features, column + up.shape[1]


def _same(one: list[tuple[Pair, int, int]], other: list[tuple[Pair, int, int]]) -> bool:
    return len(one) == len(other) and all(a[0] is b[0] and a[1:] == b[1:] for a, b in zip(one, other, strict=True))


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
