"""The parts of a forward to learn with, each with its gradient by formula: little is kept, little is launched.

Weights are frozen here; only adapters have gradients.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from coterie.models.either import either
from coterie.models.lora import Joined
from coterie.models.products import add_product, in_full
from coterie.models.routing import slices

Given = tuple[Tensor | None, ...]


def formulas(x: Tensor) -> Any:
    """`formulas`, or the kernels that do the same on CUDA."""
    return either(x.device.type, "coterie.models.formulas", "coterie.models.slopes")


class Norm(torch.autograd.Function):
    """x [..., N] → its RMS norm as `dtype`."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, epsilon: float, dtype: torch.dtype) -> Tensor:
        out, size = formulas(x).norm(x, weight, epsilon, dtype)
        ctx.save_for_backward(x, weight, size)
        return out

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> Given:
        return formulas(slope).norm_back(slope, *ctx.saved_tensors), None, None, None


class Turn(torch.autograd.Function):
    """Rotary positions: x [T, H, D], cos and sin [T, D]."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        ctx.save_for_backward(cos, sin)
        return formulas(x).turned(x, cos, sin)

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> Given:
        return formulas(slope).turned(slope, *ctx.saved_tensors, back=True), None, None


@dataclass(frozen=True)
class Run:
    """A run of tokens on one adapter, which has a part in some of the layers of a product."""

    tokens: slice
    outs: tuple[slice, ...]  # the outputs of each of these layers
    ranks: tuple[int, ...]
    scale: float

    @cached_property
    def columns(self) -> list[slice]:
        """Of each layer in what they read."""
        return slices(self.ranks)


def runs_of(joined: Joined) -> tuple[list[Run], list[Tensor]]:
    """Who speaks through these layers now, and the `down` and `up` of their pairs, run by run."""
    runs, parameters = list[Run](), list[Tensor]()
    places = slices(joined.sizes)
    for start, end, name in joined.shares.routing.segments:
        found = [(i, layer.pairs[name]) for i, layer in enumerate(joined.layers) if name in layer.pairs]
        if found:
            outs = tuple(places[i] for i, _ in found)
            ranks = tuple(len(pair.down) for _, pair in found)
            runs.append(Run(slice(start, end), outs, ranks, found[0][1].scale))
            parameters += [pair.down for _, pair in found]
            parameters += [pair.up for _, pair in found]
    return runs, parameters


@dataclass
class _Product:
    """x·Wᵀ + b, and each run's own x·(scale·down)ᵀ·upᵀ."""

    weight: Tensor
    bias: Tensor | None
    runs: Sequence[Run]
    downs: list[Tensor]  # of each run: [Σ ranks, in], scaled
    ups: list[list[Tensor]]  # of each run and layer: [out, rank]

    @staticmethod
    def of(x: Tensor, joined: Joined, runs: Sequence[Run], parameters: Sequence[Tensor]) -> _Product:
        """All as precise as x."""
        dtype, left = x.dtype, list(parameters)
        downs, ups = list[Tensor](), list[list[Tensor]]()
        for run in runs:
            count = len(run.ranks)
            down = torch.cat(left[:count]) if count > 1 else left[0]
            downs.append((down * run.scale).to(dtype))
            ups.append([up.to(dtype) for up in left[count : 2 * count]])
            left = left[2 * count :]
        bias = None if joined.bias is None else joined.bias.to(dtype)
        return _Product(joined.weight.to(dtype), bias, runs, downs, ups)

    def forward(self, x: Tensor, full: bool) -> tuple[Tensor, list[Tensor]]:
        """What comes out, and what each run's adapter read."""
        out, lows = (in_full if full else F.linear)(x, self.weight, self.bias), []
        for run, down, ups in zip(self.runs, self.downs, self.ups, strict=True):
            low = x[run.tokens] @ down.t()
            for columns, outs, up in zip(run.columns, run.outs, ups, strict=True):
                add_product(out[run.tokens, outs], low[:, columns], up)
            lows.append(low)
        return out, lows

    def backward(self, slope: Tensor, x: Tensor, lows: Sequence[Tensor], wanted: bool) -> tuple[Tensor | None, Given]:
        """The gradient by x, where it is wanted, and by the parameters."""
        slope = slope.to(x.dtype)
        by_x = slope @ self.weight if wanted else None
        found: list[Tensor] = []
        for run, down, ups, low in zip(self.runs, self.downs, self.ups, lows, strict=True):
            here, by_low = slope[run.tokens], torch.empty_like(low)
            for columns, outs, up in zip(run.columns, run.outs, ups, strict=True):
                torch.mm(here[:, outs], up, out=by_low[:, columns])
            if by_x is not None:
                by_x[run.tokens].addmm_(by_low, down)
            by_down = (by_low.t() @ x[run.tokens]).float().mul_(run.scale)
            found += by_down.split(run.ranks)
            found += [
                (here[:, outs].t() @ low[:, columns]).float()
                for columns, outs in zip(run.columns, run.outs, strict=True)
            ]
        return by_x, tuple(found)


class _Linear(torch.autograd.Function):
    """What lies between a gate and the product after it is computed again in the backward."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, gate: bool, full: bool, joined: Joined, runs: Sequence[Run], *parameters: Tensor
    ) -> Tensor:
        read = formulas(x).gated(x) if gate else x
        ctx.gate, ctx.product = gate, _Product.of(read, joined, runs, parameters)
        out, lows = ctx.product.forward(read, full)
        ctx.save_for_backward(x, *lows)
        return out

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> Given:
        x, *lows = ctx.saved_tensors
        read = formulas(x).gated(x) if ctx.gate else x
        by_x, others = ctx.product.backward(slope, read, lows, ctx.needs_input_grad[0])
        if ctx.gate and by_x is not None:
            by_x = formulas(x).gated_back(by_x, x)
        return by_x, None, None, None, None, *others


def linear(x: Tensor, joined: Joined, gate: bool = False, full: bool = False) -> Tensor:
    """[T, in] → [T, Σ out], each run of tokens with its adapter. Through a gate, x is twice as wide: SiLU of its first
    half times its second is what the layers read. `full` as of `in_full`."""
    runs, parameters = runs_of(joined)
    return _Linear.apply(x, gate, full, joined, runs, *parameters)
