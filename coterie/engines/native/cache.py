"""Keys and values of every row the engine knows, one slot per row."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from coterie.models.attention import NOWHERE, allowed

STRIDE = 64  # capacity grows in steps of this many tokens


class SlotCache:
    """One tensor [2, layers, slots, heads, capacity, width], grown when a row needs it."""

    def __init__(self, layers: int, heads: int, width: int, dtype: torch.dtype, device: torch.device) -> None:
        self.store = torch.empty(2, layers, 0, heads, 0, width, dtype=dtype, device=device)

    @property
    def slots(self) -> int:
        return self.store.shape[2]

    @property
    def capacity(self) -> int:
        return self.store.shape[4]

    def reserve(self, slots: int, capacity: int) -> None:
        """Make room for so many rows of so many tokens; what is stored stays.

        Zeros, for a masked key still takes part: with weight 0, and 0 × NaN is NaN."""
        capacity = -(-capacity // STRIDE) * STRIDE
        if slots <= self.slots and capacity <= self.capacity:
            return
        old = self.store
        two, layers, had, heads, length, width = old.shape
        self.store = old.new_zeros(two, layers, max(slots, had), heads, max(capacity, length), width)
        self.store[:, :, :had, :, :length] = old

    def copy(self, source: int, target: int, length: int) -> None:
        self.store[:, :, target, :, :length] = self.store[:, :, source, :, :length]

    def swap(self, a: int, b: int, length_a: int, length_b: int) -> None:
        """Exchange two rows; only their live lengths move."""
        kept = self.store[:, :, a, :, :length_a].clone()
        self.store[:, :, a, :, :length_b] = self.store[:, :, b, :, :length_b]
        self.store[:, :, b, :, :length_a] = kept

    def places(self, slots: Tensor, positions: Tensor) -> Tensor:
        """Where tokens stand in a layer that is seen as a list of vectors: [T] → [T·heads]."""
        heads = torch.arange(self.store.shape[3], device=slots.device)
        return ((slots[:, None] * len(heads) + heads) * self.capacity + positions[:, None]).flatten()

    def write(self, layer: int, places: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Store k and v [heads, T, width]; gives the layer's keys and values [slots, heads, capacity, width]."""
        width = k.shape[-1]
        keys, values = self.store[0, layer], self.store[1, layer]
        keys.view(-1, width).index_copy_(0, places, k.transpose(0, 1).reshape(-1, width))
        values.view(-1, width).index_copy_(0, places, v.transpose(0, 1).reshape(-1, width))
        return keys, values

    def clear(self) -> None:
        self.store = self.store[:, :, :0, :, :0].clone()


class Decode:
    """One new token for each of the first R slots; the stream may order them as the adapters like."""

    def __init__(self, cache: SlotCache, slots: Tensor, lengths: Tensor) -> None:
        """`slots` [R] of the stream's tokens, `lengths` [R]: how many tokens stand before each."""
        self.cache, self.slots = cache, slots
        self.places = cache.places(slots, lengths)
        self.back = torch.empty_like(slots)
        self.back[slots] = torch.arange(len(slots), device=slots.device)
        self.lengths_by_slot = lengths[self.back]
        self.span = int(lengths.max()) + 1
        self.masks: dict[int | None, Tensor] = {}

    def _mask(self, window: int | None) -> Tensor:
        if window not in self.masks:
            at = torch.arange(self.span, device=self.slots.device).expand(len(self.slots), -1)
            sees = allowed(self.lengths_by_slot[:, None], at, window)
            dtype = self.cache.store.dtype
            self.masks[window] = torch.zeros(sees.shape, dtype=dtype, device=sees.device).masked_fill_(
                ~sees, -torch.inf
            )
        return self.masks[window]

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, scale: float, window: int | None) -> Tensor:
        rows, kv_heads = len(self.slots), k.shape[0]
        keys, values = self.cache.write(layer, self.places, k, v)
        # The query heads that share a key head stand as its queries: keys are read once, not once per head.
        by_slot = q.transpose(0, 1)[self.back].view(rows, kv_heads, -1, q.shape[-1])
        out = F.scaled_dot_product_attention(
            by_slot,
            keys[:rows, :, : self.span],
            values[:rows, :, : self.span],
            attn_mask=self._mask(window),
            scale=scale,
        )
        return out.reshape(rows, q.shape[0], -1)[self.slots]


class Prefill:
    """Several new tokens for some slots, each after what its slot already holds."""

    def __init__(self, cache: SlotCache, slots: Sequence[int], starts: Sequence[int], counts: Sequence[int]) -> None:
        device = cache.store.device
        self.cache = cache
        self.rows = torch.tensor(slots, device=device)
        self.starts = torch.tensor(starts, device=device)
        self.counts = torch.tensor(counts, device=device)
        step = torch.arange(max(counts), device=device)
        self.real = step < self.counts[:, None]  # [R, N]
        self.at = torch.where(self.real, self.starts[:, None] + step, NOWHERE)
        self.span = int((self.starts + self.counts).max())
        self.positions = self.at[self.real]  # [T], of each token in the stream
        self.places = cache.places(self.rows[:, None].expand_as(self.at)[self.real], self.positions)
        self.masks: dict[int | None, Tensor] = {}

    def _mask(self, window: int | None) -> Tensor:
        if window not in self.masks:
            at = torch.arange(self.span, device=self.at.device).expand(len(self.rows), -1)
            # A padded query sees all, so that its softmax is a number; nobody reads it.
            self.masks[window] = allowed(self.at, at, window) | ~self.real[:, None, :, None]
        return self.masks[window]

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, scale: float, window: int | None) -> Tensor:
        keys, values = self.cache.write(layer, self.places, k, v)
        padded = q.new_zeros(*self.real.shape, q.shape[0], q.shape[-1])
        padded[self.real] = q.transpose(0, 1)
        out = F.scaled_dot_product_attention(
            padded.transpose(1, 2),
            keys[self.rows, :, : self.span],
            values[self.rows, :, : self.span],
            attn_mask=self._mask(window),
            scale=scale,
            enable_gqa=q.shape[0] != k.shape[0],
        )
        return out.transpose(1, 2)[self.real]
