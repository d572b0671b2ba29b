"""The parts of a forward to learn with, each with its gradient by formula: little is kept, little is launched.

Weights are frozen here. Only adapters learn, and their gradients are added where they belong as soon as they are known:
autograd, which would hand each of them on by itself, sees only what the layers say.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from coterie.kernels.dispatch import kernels_for
from coterie.kernels.matmul import in_full
from coterie.kernels.training_ops import Lift, add_lifts
from coterie.models.lora import Joined
from coterie.models.lora_shard import Part

Given = tuple[Tensor | None, ...]


def formulas(x: Tensor) -> Any:
    """`formulas`, or the kernels that do the same on CUDA."""
    return kernels_for(x.device.type, "coterie.kernels.training_ops", "coterie.kernels.training_ops_triton")


class Heard(torch.autograd.Function):
    """x as it is; what is computed from it is heard in the backward, x itself is not."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, anchor: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> Given:
        return None, None


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


class AddNorm(torch.autograd.Function):
    """x + y, and its norm."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, y: Tensor, weight: Tensor, epsilon: float, dtype: torch.dtype
    ) -> tuple[Tensor, Tensor]:
        total, out, size = formulas(x).add_norm(x, y, weight, epsilon, dtype)
        ctx.save_for_backward(total, weight, size)
        ctx.set_materialize_grads(False)
        return total, out

    @staticmethod
    def backward(ctx: Any, by_total: Tensor | None, slope: Tensor) -> Given:
        by_both = formulas(slope).norm_back(slope, *ctx.saved_tensors, by_total)
        return by_both, by_both, None, None, None


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
    """A run of tokens on one adapter, and its part in a product."""

    tokens: slice
    part: Part


def runs_of(joined: Joined, dtype: torch.dtype) -> list[Run]:
    """Who speaks through these layers now."""
    parts = ((start, end, joined.part(name, dtype)) for start, end, name in joined.shares.routing.segments)
    return [Run(slice(start, end), part) for start, end, part in parts if part is not None]


class _Product:
    """x·Wᵀ + b, and each run's own x·(scale·down)ᵀ·upᵀ, all as precise as x."""

    def __init__(self, x: Tensor, joined: Joined) -> None:
        self.weight, self.runs = joined.weight.to(x.dtype), runs_of(joined, x.dtype)
        self.bias = None if joined.bias is None else joined.bias.to(x.dtype)

    def forward(self, x: Tensor, full: bool) -> tuple[Tensor, list[Tensor]]:
        """What comes out, and what each run's adapter read."""
        out, (lifts, lows) = self.plain(x, full), self.lifts(x)
        add_lifts(out, lifts)
        return out, lows

    def plain(self, x: Tensor, full: bool) -> Tensor:
        return (in_full if full else F.linear)(x, self.weight, self.bias)

    def lifts(self, x: Tensor) -> tuple[list[Lift], list[Tensor]]:
        """What adapters add, and what each run's adapter read."""
        found, lows = list[Lift](), list[Tensor]()
        for run in self.runs:
            low = x[run.tokens] @ run.part.down.t()
            found += [Lift(run.tokens, outs, low[:, columns], up) for outs, columns, up in run.part.ups]
            lows.append(low)
        return found, lows

    def backward(self, slope: Tensor, x: Tensor, lows: Sequence[Tensor]) -> Tensor:
        """The gradient by x; those of the adapters are added to what they have."""
        slope = slope.to(x.dtype)
        by_x = slope @ self.weight
        for run, low in zip(self.runs, lows, strict=True):
            here, by_low = slope[run.tokens], torch.empty_like(low)
            for outs, columns, up in run.part.ups:
                torch.mm(here[:, outs], up, out=by_low[:, columns])
            by_x[run.tokens].addmm_(by_low, run.part.down)
            run.part.blame(x[run.tokens], low, by_low, here)
        return by_x


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, joined: Joined, full: bool) -> Tensor:
        ctx.product = _Product(x, joined)
        out, lows = ctx.product.forward(x, full)
        ctx.save_for_backward(x, *lows)
        return out

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> Given:
        x, *lows = ctx.saved_tensors
        return ctx.product.backward(slope, x, lows), None, None


def linear(x: Tensor, joined: Joined, full: bool = False) -> Tensor:
    """[T, in] → [T, Σ out], each run of tokens with its adapter. `full` as of `in_full`."""
    return _Linear.apply(x, joined, full)


class _Gated(torch.autograd.Function):
    """What lies between the gate and the product after it is computed again in the backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, first: Joined, second: Joined) -> Tensor:
        before = _Product(x, first)
        lifts, lows = before.lifts(x)
        read, both = formulas(x).gated(before.plain(x, full=True), lifts, x.dtype)
        after = _Product(read, second)
        out, more = after.forward(read, full=True)
        ctx.before, ctx.after, ctx.count = before, after, len(lows)
        ctx.save_for_backward(x, both, *lows, *more)
        return out

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> Given:
        x, both, *lows = ctx.saved_tensors
        read, _ = formulas(x).gated(both, (), x.dtype)
        by_read = ctx.after.backward(slope, read, lows[ctx.count :])
        return ctx.before.backward(formulas(x).gated_back(by_read, both), x, lows[: ctx.count]), None, None


def gated(x: Tensor, first: Joined, second: Joined) -> Tensor:
    """[T, in] → [T, out] in full precision: SiLU of the first half of what the first layers say, times its second half,
    through the second. Both halves are rounded for the backward only."""
    return _Gated.apply(x, first, second)
