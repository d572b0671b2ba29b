"""An adapter's part in layers that read the same tokens: copies to multiply with, and a place for its gradients."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from coterie.kernels.matmul import add_product
from coterie.models.lora_routing import Pair, slices


class Part:
    """As precise as a forward wants it; made again when the adapter has moved."""

    def __init__(self, pairs: Sequence[Pair], outs: Sequence[slice], dtype: torch.dtype) -> None:
        """`outs`: the outputs of each pair's layer."""
        self.pairs, self.versions = pairs, _versions(pairs)
        self.scale = pairs[0].scale  # that of the adapter
        self.columns = slices([len(pair.down) for pair in pairs])
        self.down = (torch.cat([pair.down.detach() for pair in pairs]) * self.scale).to(dtype)  # [Σ ranks, in]
        copies = [pair.up.detach().to(dtype) for pair in pairs]
        self.ups = list(zip(outs, self.columns, copies, strict=True))  # outputs, columns, [out, rank]
        self.by_downs: list[Tensor] = []  # parts of one tensor
        self.by_down = torch.empty(0)

    def serves(self, pairs: Sequence[Pair]) -> bool:
        """Whether it still says what these do."""
        return self.pairs == pairs and self.versions == _versions(pairs)

    def blame(self, x: Tensor, low: Tensor, by_low: Tensor, slope: Tensor) -> None:
        """Add the gradients of a run of tokens, which read x [T, in] and low [T, Σ ranks] and whose outputs have this
        slope, to what the parameters have."""
        add_product(self._by_down(), by_low.t(), x.t(), self.scale)
        for pair, (outs, columns, _) in zip(self.pairs, self.ups, strict=True):
            pair.up.grad = _gradient(pair.up)
            add_product(pair.up.grad, slope[:, outs].t(), low[:, columns].t())

    def _by_down(self) -> Tensor:
        """The gradients of all `down` lie in one tensor, so that one product serves them all: [Σ ranks, in]."""
        if [id(pair.down.grad) for pair in self.pairs] != [id(by) for by in self.by_downs]:
            self.by_down = torch.cat([_gradient(pair.down) for pair in self.pairs])
            self.by_downs = [self.by_down[columns] for columns in self.columns]
            for pair, by in zip(self.pairs, self.by_downs, strict=True):
                pair.down.grad = by
        return self.by_down


def _gradient(parameter: Tensor) -> Tensor:
    return torch.zeros_like(parameter) if parameter.grad is None else parameter.grad


def _versions(pairs: Sequence[Pair]) -> list[tuple[int, int, float]]:
    return [(pair.down._version, pair.up._version, pair.scale) for pair in pairs]
