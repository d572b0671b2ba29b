"""A forward of our own for decoders that are built like Llama, to learn adapters with.

It computes what the model's own modules compute, in fewer launches, and keeps less of it for the backward.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from coterie.kernels.varlen_attention import compute_dtype
from coterie.models.attention import Layout
from coterie.models.autograd_ops import AddNorm, Heard, Norm, Turn, gated, linear
from coterie.models.forward import Block, Forward


class Learned:
    """Embedding, blocks and last norm; the model's weights are frozen."""

    def __init__(self, forward: Forward) -> None:
        self.forward = forward

    def __call__(self, tokens: Tensor, positions: Tensor, layout: Layout, again: bool) -> Tensor:
        """[T], [T] → [T, hidden]; `again`: keep little, and run every block once more in the backward."""
        embedded = self.forward.embed(tokens)
        # What every layer adds to, and what it adds, are in full precision; only the products' factors have half.
        x, dtype = embedded.to(torch.promote_types(embedded.dtype, torch.float32)), compute_dtype(embedded)
        cos, sin = (turn[0] for turn in self.forward.rotary(x, positions[None]))
        y: Tensor | None = None
        for i, block in enumerate(self.forward.blocks):
            if torch.is_grad_enabled() and not x.requires_grad and _learns(block):
                x = Heard.apply(x, x.new_empty(0, requires_grad=True))
            given = i, block, x, y, cos, sin, layout, dtype
            if again:  # what is kept of a block is one tensor
                x, y = checkpoint(lambda *those: torch.add(*self._through(*those)), *given, use_reentrant=False), None
            else:
                x, y = self._through(*given)
        return _add_norm(x, y, self.forward.norm, x.dtype)[1]

    def _through(
        self, i: int, block: Block, x: Tensor, y: Tensor | None, cos: Tensor, sin: Tensor, layout: Layout,
        dtype: torch.dtype,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        """x + y is what came out of the block before."""
        x, read = _add_norm(x, y, block.before, dtype)
        x, read = _add_norm(x, self._attend(i, block, read, cos, sin, layout), block.between, dtype)
        return x, gated(read, block.gate_up, block.down)

    def _attend(self, i: int, block: Block, x: Tensor, cos: Tensor, sin: Tensor, layout: Layout) -> Tensor:
        width = self.forward.width
        queries, keys, _ = heads = [size // width for size in block.qkv.sizes]
        both, v = linear(x, block.qkv).unflatten(1, (sum(heads), width)).split((queries + keys, keys), dim=1)
        if block.norms is not None:
            parts = zip(both.split((queries, keys), dim=1), block.norms, strict=True)
            both = torch.cat([_norm(part, norm, x.dtype) for part, norm in parts], dim=1)
        q, k = Turn.apply(both, cos, sin).split((queries, keys), dim=1)
        q, k, v = (part.transpose(0, 1) for part in (q, k, v))
        seen = layout.attend(i, q, k, v, block.asked.scale, block.asked.window).flatten(1)
        return linear(seen, block.out, full=True)


def _learns(block: Block) -> bool:
    """Whether an adapter that speaks now has a part in it."""
    layers = [layer for joined in (block.qkv, block.out, block.gate_up, block.down) for layer in joined.layers]
    return any(name in layer.pairs for layer in layers for name in layer.routing.names)


def _add_norm(x: Tensor, y: Tensor | None, norm: nn.Module, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """x + y, and its norm."""
    return (x, _norm(x, norm, dtype)) if y is None else AddNorm.apply(x, y, norm.weight, norm.variance_epsilon, dtype)


def _norm(x: Tensor, norm: nn.Module, dtype: torch.dtype) -> Tensor:
    return Norm.apply(x, norm.weight, norm.variance_epsilon, dtype)
