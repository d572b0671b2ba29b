"""A Llama-shaped model's forward on CUDA: between two products there is one launch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property

import torch
from torch import Tensor

from coterie.engines.native.kv_cache import Flash, SlotCache
from coterie.kernels.decode_attention import Heads, attend, place
from coterie.kernels.decode_ops import add_norm
from coterie.models.forward import Forward
from coterie.models.lora_decode import Stacked, Then, refresh
from coterie.models.lora_routing import Segment

Products = tuple[Stacked, Stacked, Stacked, Stacked]  # of queries, keys and values; out; gate and up; down
Attention = Callable[[int, Tensor, Heads], Tensor | None]  # a layer's queries, keys and values → what it saw
Product = Callable[[Stacked, Tensor, Then], Tensor]  # what layers say of these tokens


class Fused:
    """Embedding, blocks and last norm, with the adapters of all rows."""

    def __init__(self, forward: Forward, cache: SlotCache, adapters: Sequence[str]) -> None:
        self.forward, self.cache, self.adapters = forward, cache, adapters
        self.stale = True  # whether adapters have moved since they were copied
        self.turned: tuple[Tensor, Tensor] | None = None

    @cached_property
    def products(self) -> list[Products]:
        """Made with the first words: by then all adapters are there."""
        return [
            (
                Stacked(block.qkv, self.adapters), Stacked(block.out, self.adapters),
                Stacked(block.gate_up, self.adapters), Stacked(block.down, self.adapters),
            )
            for block in self.forward.blocks
        ]  # fmt: skip

    def refresh(self) -> None:
        if self.stale:
            refresh([layer for block in self.products for layer in block])
            self.stale = False

    def step(self, tokens: Tensor, sheet: Tensor, slots: Tensor, who: Tensor | None) -> Tensor:
        """One token for each row of the sheet, in its slot, where the sheet says that it stands."""
        turns = self.turns()

        def seen(i: int, qkv: Tensor, heads: Heads) -> Tensor:
            block = self.forward.blocks[i]
            scale, window = block.asked
            return attend(qkv, turns, self.cache.layers[i], sheet, slots, heads, scale, window, block.norms)

        if who is None:
            return self._run(tokens, seen, Stacked.plain)
        return self._run(tokens, seen, lambda layer, x, then: layer.by_row(x, who, then))

    def read(self, tokens: Tensor, layout: Flash, runs: Sequence[Segment]) -> None:
        """Several tokens for some slots; only their keys and values are wanted."""
        turns, last = self.turns(), len(self.forward.blocks) - 1

        def seen(i: int, qkv: Tensor, heads: Heads) -> Tensor | None:
            block = self.forward.blocks[i]
            scale, window = block.asked
            cache = self.cache.layers[i]
            q, k, v = place(qkv, turns, cache, layout.rows, layout.positions, heads, block.norms)
            return None if i == last else layout.flash(cache, q, k, v, scale, window).flatten(1)

        self._run(tokens, seen, lambda layer, x, then: layer.by_run(x, runs, then))

    def _run(self, tokens: Tensor, seen: Attention, through: Product) -> Tensor:
        x, y, width = self.forward.embed(tokens).float(), None, self.forward.width
        for i, (block, (qkv, out, gate_up, down)) in enumerate(zip(self.forward.blocks, self.products, strict=True)):
            queries, keys, _ = (size // width for size in block.qkv.sizes)
            joined = through(qkv, add_norm(x, y, block.before), None)
            saw = seen(i, joined, Heads(queries, keys, width))
            if saw is None:  # keys and values were all that was wanted
                return x
            y = through(out, saw, "sum")
            y = through(down, through(gate_up, add_norm(x, y, block.between), "gate"), "sum")
        return add_norm(x, y, self.forward.norm)

    def turns(self) -> tuple[Tensor, Tensor]:
        """Cosine and sine of every position a slot has, in full precision: [capacity, width]."""
        if self.turned is None or len(self.turned[0]) < self.cache.capacity:
            positions = torch.arange(self.cache.capacity, device=self.cache.device)
            cos, sin = self.forward.rotary(self.forward.norm.weight.float(), positions[None])
            self.turned = cos[0].contiguous(), sin[0].contiguous()
        return self.turned
