"""Per-row LoRA (multi-LoRA) in decode: linear layers with all adapters stacked, at fixed addresses for graphs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from coterie.kernels.decode_ops import lora_delta, swiglu
from coterie.kernels.matmul import LoraDelta, add_lora_deltas_, linear_fp32_out
from coterie.kernels.skinny_gemm import SPLIT_K_ROWS, SWIGLU_ROWS, split_k, swiglu_gemm, use_skinny_gemm
from coterie.models.lora import FusedLinear
from coterie.models.lora_routing import LoraPair, Segment, slices

# What follows the matmul: SwiGLU of its two halves, or an addition to the residual stream. Both take fp32 inputs.
Epilogue = Literal["swiglu", "residual"] | None


class StackedLora:
    """A fused linear layer with the `down` matrices of all adapters as extra rows of its weight.

    One GEMM gives the layer's outputs and every adapter's low-rank activations; one kernel adds each row's own delta.
    """

    def __init__(self, fused: FusedLinear, names: Sequence[str]) -> None:
        layers, self.outs = fused.layers, len(fused.weight)
        starts = [sum(fused.sizes[:i]) for i in range(len(layers))]
        self.pairs: list[tuple[int, int, LoraPair]] = []  # first output, first column
        self.columns: dict[str, tuple[int, int]] = {}
        columns = 0
        for name in names:
            first = columns
            for start, layer in zip(starts, layers, strict=True):
                if name in layer.pairs:
                    self.pairs.append((start, columns, layer.pairs[name]))
                    columns += len(layer.pairs[name].down)
            self.columns[name] = first, columns
        if columns:
            fused.reserve_rows(columns)
        self.weight, self.bias = fused.weight, fused.bias
        self.wide = fused.wide
        self.wide_bias = None if self.bias is None else torch.cat([self.bias, self.bias.new_zeros(columns)])
        self.up = self.weight.new_zeros(self.outs, columns)
        self.spans = torch.tensor(list(self.columns.values()), dtype=torch.int32, device=self.weight.device)

    def copies(self) -> Iterator[tuple[Tensor, Tensor, float]]:
        """Destination, source and factor of every adapter matrix."""
        for start, column, pair in self.pairs:
            end = column + len(pair.down)
            yield self.wide[self.outs + column : self.outs + end], pair.down.detach(), pair.scale
            yield self.up[start : start + len(pair.up), column:end], pair.up.detach(), 1.0

    def without_lora(self, x: Tensor, epilogue: Epilogue = None) -> Tensor:
        """[T, in] → [T, Σ out] without adapters; SwiGLU halves the width; a residual may get split-K partial sums."""
        if epilogue == "swiglu" and use_skinny_gemm(x, self.weight, SWIGLU_ROWS):
            return swiglu_gemm(x, self.weight, self.bias)
        out = _gemm(x, self.weight, self.bias, epilogue)
        return swiglu(out, (), x.dtype) if epilogue == "swiglu" else out

    def per_row(self, x: Tensor, adapters: Tensor, epilogue: Epilogue = None) -> Tensor:
        """Decode: each row with the adapter whose number it has in `adapters` [R]; −1 is none."""
        if not self.pairs:
            return self.without_lora(x, epilogue)
        out = _gemm(x, self.wide, self.wide_bias, epilogue)
        return lora_delta(out, self.up, self.spans, adapters, epilogue == "swiglu")

    def per_segment(self, x: Tensor, segments: Sequence[Segment], epilogue: Epilogue = None) -> Tensor:
        """Prefill: each run of tokens with its adapter.

        Only keys and values are needed here, so gate and up are rounded before SwiGLU as well: that is faster, and its
        effect on an answer's log-probs is a hundredth of the gap between sampler and learner.
        """
        adapted = any(adapter for _, _, adapter in segments)
        weights = (self.wide, self.wide_bias) if adapted else (self.weight, self.bias)
        wide = (linear_fp32_out if epilogue == "residual" else F.linear)(x, *weights)
        out, deltas = wide[:, : self.outs], list[LoraDelta]()
        for start, end, adapter in segments:
            first, last = self.columns[adapter] if adapter is not None else (0, 0)
            if first < last:
                low = wide[start:end, self.outs + first : self.outs + last].to(x.dtype)
                for outs in slices([self.outs // 2] * 2 if epilogue == "swiglu" else [self.outs]):
                    deltas.append(LoraDelta(slice(start, end), outs, low, self.up[outs, first:last]))
        if epilogue == "swiglu":
            return swiglu(out, deltas, x.dtype)
        add_lora_deltas_(out, deltas)
        return out.contiguous()


def _gemm(x: Tensor, weight: Tensor, bias: Tensor | None, epilogue: Epilogue) -> Tensor:
    """`F.linear`, in fp32 for an epilogue; perhaps as split-K partial sums for a residual."""
    if epilogue == "residual" and bias is None and use_skinny_gemm(x, weight, SPLIT_K_ROWS):
        return split_k(x, weight)
    return (linear_fp32_out if epilogue else F.linear)(x, weight, bias)


def refresh(layers: Sequence[StackedLora]) -> None:
    """Copy the adapters' current weights; as in the learner, the scale is multiplied in before rounding."""
    copies = [copy for layer in layers for copy in layer.copies()]
    if copies:
        scaled = torch._foreach_mul([pair for _, pair, _ in copies], [scale for _, _, scale in copies])
        torch._foreach_copy_([place for place, _, _ in copies], scaled)
