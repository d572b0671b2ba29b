"""Products with the adapters of all rows in them, at addresses that stay: for steps that are captured once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from coterie.kernels.decode_ops import gated, lift
from coterie.kernels.matmul import in_full
from coterie.kernels.skinny_gemm import GATE_ROWS, SUM_ROWS, fits, gate_product, in_parts
from coterie.kernels.training_ops import Lift, add_lifts
from coterie.models.lora import Joined
from coterie.models.lora_routing import Pair, Segment, slices

Then = Literal["gate", "sum"] | None  # what comes after a product: SiLU of its first half times its second; a sum


class Stacked:
    """Layers that read the same tokens, and under their weights the `down` of every adapter on them.

    One product gives what the layers say and, beside it, what each adapter reads; one kernel adds each row's own.
    """

    def __init__(self, joined: Joined, names: Sequence[str]) -> None:
        layers, self.outs = joined.shares.layers, len(joined.weight)
        starts = [sum(joined.sizes[:i]) for i in range(len(layers))]
        self.parts: list[tuple[int, int, Pair]] = []  # first output, first column
        self.columns: dict[str, tuple[int, int]] = {}
        columns = 0
        for name in names:
            first = columns
            for start, layer in zip(starts, layers, strict=True):
                if name in layer.pairs:
                    self.parts.append((start, columns, layer.pairs[name]))
                    columns += len(layer.pairs[name].down)
            self.columns[name] = first, columns
        if columns:
            joined.make_room(columns)
        self.weight, self.bias = joined.weight, joined.bias
        self.wide = joined.wide
        self.wide_bias = None if self.bias is None else torch.cat([self.bias, self.bias.new_zeros(columns)])
        self.up = self.weight.new_zeros(self.outs, columns)
        self.spans = torch.tensor(list(self.columns.values()), dtype=torch.int32, device=self.weight.device)

    def copies(self) -> Iterator[tuple[Tensor, Tensor, float]]:
        """Where the adapters belong here, what they are, and by how much they count."""
        for start, column, pair in self.parts:
            end = column + len(pair.down)
            yield self.wide[self.outs + column : self.outs + end], pair.down.detach(), pair.scale
            yield self.up[start : start + len(pair.up), column:end], pair.up.detach(), 1.0

    def plain(self, x: Tensor, then: Then = None) -> Tensor:
        """[T, in] → [T, Σ out] without adapters; through a gate half as wide; before a sum in full precision, and
        perhaps in parts. What goes through a gate is rounded after it."""
        if then == "gate" and fits(x, self.weight, GATE_ROWS):
            return gate_product(x, self.weight, self.bias)
        said = _product(x, self.weight, self.bias, then)
        return gated(said, (), x.dtype) if then == "gate" else said

    def by_row(self, x: Tensor, who: Tensor, then: Then = None) -> Tensor:
        """Each row with the adapter whose number it has in `who` [R]; −1 is none."""
        if not self.parts:
            return self.plain(x, then)
        return lift(_product(x, self.wide, self.wide_bias, then), self.up, self.spans, who, then == "gate")

    def by_run(self, x: Tensor, runs: Sequence[Segment], then: Then = None) -> Tensor:
        """Each run of tokens with its adapter. For prompts, of which only keys and values are wanted: what goes through
        a gate is rounded before it too, which is faster and changes an answer's log-probs by a hundredth of the gap."""
        weights = (self.wide, self.wide_bias) if any(adapter for _, _, adapter in runs) else (self.weight, self.bias)
        said = (in_full if then == "sum" else F.linear)(x, *weights)
        out, lifts = said[:, : self.outs], list[Lift]()
        for start, end, adapter in runs:
            first, last = self.columns[adapter] if adapter is not None else (0, 0)
            if first < last:
                read = said[start:end, self.outs + first : self.outs + last].to(x.dtype)
                for outs in slices([self.outs // 2] * 2 if then == "gate" else [self.outs]):
                    lifts.append(Lift(slice(start, end), outs, read, self.up[outs, first:last]))
        if then == "gate":
            return gated(out, lifts, x.dtype)
        add_lifts(out, lifts)
        return out.contiguous()


def _product(x: Tensor, weight: Tensor, bias: Tensor | None, then: Then) -> Tensor:
    """`F.linear`, if something comes after it in full precision; before a sum perhaps in parts."""
    if then == "sum" and bias is None and fits(x, weight, SUM_ROWS):
        return in_parts(x, weight)
    return (in_full if then else F.linear)(x, weight, bias)


def refresh(layers: Sequence[Stacked]) -> None:
    """Copy the adapters as they are now; as the learner does, rounded when their scale is in them."""
    copies = [copy for layer in layers for copy in layer.copies()]
    if copies:
        scaled = torch._foreach_mul([pair for _, pair, _ in copies], [scale for _, _, scale in copies])
        torch._foreach_copy_([place for place, _, _ in copies], scaled)
