"""The KV cache, one slot per row, and the attention layouts on it: decode, prefill, and flash prefill on CUDA."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from coterie.kernels.varlen_attention import VarlenRows, flash_attention
from coterie.models.attention import PAD_POSITION, causal_mask

GROWTH, CUDA_GROWTH = 16, 64  # tokens by which capacity grows; on CUDA more, as every move invalidates the CUDA graphs
MIN_KEYS = 64  # MKL takes longer for fewer keys
FREE_SHARE = 0.5  # share of a GPU's free memory that slots may take
FULL_SHARE = 0.9  # share of a GPU's memory above which slots are freed while the learner runs

KeysValues = tuple[Tensor, Tensor]


class KVCache:
    """Per layer a tensor [keys and values, slots, heads, capacity, head_dim], grown on demand."""

    def __init__(self, layers: int, heads: int, head_dim: int, dtype: torch.dtype, device: torch.device) -> None:
        self.layers = [torch.empty(2, 0, heads, 0, head_dim, dtype=dtype, device=device) for _ in range(layers)]
        self.keys_values = [keys_values(layer) for layer in self.layers]
        self.whole: Tensor | None = None  # all layers in one tensor, on CUDA
        # `clear` was called; an update has run since, so its peak memory is known; slots stayed allocated during it.
        self.cleared = self.update_seen = self.kept = False

    @property
    def device(self) -> torch.device:
        return self.layers[0].device

    @property
    def slots(self) -> int:
        return self.layers[0].shape[1]

    @property
    def capacity(self) -> int:
        return self.layers[0].shape[3]

    def reserve(self, slots: int, capacity: int) -> None:
        """Grow to so many slots of so many tokens; the contents stay.

        On a CPU it grows layer by layer, so that only one layer is in memory twice. New memory is zeroed: masked keys
        still take part with weight 0, and 0 × NaN is NaN.
        """
        capacity = self._rounded(capacity)
        if slots <= self.slots and capacity <= self.capacity:
            return
        if self.device.type == "cuda":
            self._reserve_as_one(max(slots, self.slots), max(capacity, self.capacity))
            return
        for i, old in enumerate(self.keys_values):
            two, had, heads, length, head_dim = self.layers[i].shape
            self.layers[i] = self.layers[i].new_zeros(two, max(slots, had), heads, max(capacity, length), head_dim)
            self.keys_values[i] = keys_values(self.layers[i])
            for new, stored in zip(self.keys_values[i], old, strict=True):
                new[:had, :, :length] = stored

    def _reserve_as_one(self, slots: int, capacity: int) -> None:
        """One tensor for all layers, so that moving a row is one kernel launch."""
        old, (_, had, heads, length, head_dim) = self.layers, self.layers[0].shape
        self.whole = old[0].new_zeros(len(old), 2, slots, heads, capacity, head_dim)
        for new, layer in zip(self.whole, old, strict=True):
            new[:, :had, :, :length] = layer
        self.layers, self.keys_values = list(self.whole), [keys_values(layer) for layer in self.whole]

    def _pieces(self) -> Sequence[Tensor]:
        """The tensors that hold a row: [..., slots, heads, capacity, head_dim]."""
        return [piece for both in self.keys_values for piece in both] if self.whole is None else [self.whole]

    def copy(self, source: int, target: int, length: int) -> None:
        """Copy the first `length` tokens of a slot to another."""
        for piece in self._pieces():
            piece[..., target, :, :length, :] = piece[..., source, :, :length, :]

    def swap(self, a: int, b: int, length_a: int, length_b: int) -> None:
        """Exchange two slots; only their live lengths are copied."""
        for piece in self._pieces():
            saved = piece[..., a, :, :length_a, :].clone()
            piece[..., a, :, :length_b, :] = piece[..., b, :, :length_b, :]
            piece[..., b, :, :length_a, :] = saved

    def write(self, layer: int, slots: Tensor, positions: Tensor, k: Tensor, v: Tensor) -> KeysValues:
        """Store k and v [heads, T, head_dim] at these slots and positions; returns the layer's keys and values."""
        keys, values = self.keys_values[layer]
        keys[slots, :, positions] = k.transpose(0, 1)
        values[slots, :, positions] = v.transpose(0, 1)
        return keys, values

    def max_slots(self, slots: int, capacity: int) -> int:
        """How many of `slots` slots of `capacity` tokens fit into a GPU's memory; a CPU is not limited here."""
        allocated = slots <= self.slots and capacity <= self.capacity
        if allocated or self.device.type != "cuda":  # querying a GPU's memory takes half a millisecond
            return slots
        layer, length = self.layers[0], max(self._rounded(capacity), self.capacity)
        slot = len(self.layers) * 2 * layer.shape[2] * length * layer.shape[4] * layer.element_size()
        free = torch.cuda.mem_get_info(self.device)[0] + torch.cuda.memory_reserved(self.device)
        free += self.size - torch.cuda.memory_allocated(self.device)
        return min(slots, max(1, int(FREE_SHARE * free / slot)))

    def _rounded(self, capacity: int) -> int:
        step = CUDA_GROWTH if self.device.type == "cuda" else GROWTH
        return max(MIN_KEYS, -(-capacity // step) * step)

    @property
    def size(self) -> int:
        """In bytes."""
        return sum(layer.nbytes for layer in self.layers)

    def clear(self) -> None:
        """Free the memory for the learner, unless an earlier update has shown that both fit."""
        self.cleared = True
        if self.whole is None or not self._fits_beside_learner():
            self.free()

    def weights_updated(self) -> None:
        """An update has run: if the cache was cleared before it, the learner's peak memory is known."""
        self.update_seen = self.update_seen or self.cleared

    def free(self) -> None:
        self.layers = [layer[:, :0, :, :0].clone() for layer in self.layers]
        self.keys_values = [keys_values(layer) for layer in self.layers]
        self.whole = None

    def _fits_beside_learner(self) -> bool:
        """True if the slots and the learner's peak memory fit together; before the first update the peak is unknown."""
        if not self.update_seen:
            return False
        peak = torch.cuda.max_memory_allocated(self.device) + (0 if self.kept else self.size)
        self.kept = peak < FULL_SHARE * torch.cuda.get_device_properties(self.device).total_memory
        return self.kept


def keys_values(layer: Tensor) -> KeysValues:
    """Keys and values of a layer, [slots, heads, capacity, head_dim] each.

    On a CPU the keys of a slot and head are stored transposed, which saves a third of the time of decode scores.
    """
    keys, values = layer
    if layer.device.type != "cpu":
        return keys, values
    slots, heads, capacity, head_dim = keys.shape
    return keys.view(slots, heads, head_dim, capacity).transpose(2, 3), values


class DecodeLayout:
    """Decode: one new token for each of the first R slots; the stream may have them in any order."""

    def __init__(self, cache: KVCache, slots: Sequence[int], lengths: Sequence[int]) -> None:
        """`slots` of the stream's tokens; `lengths`: cached tokens before each."""
        device, places = cache.device, range(len(slots))
        order = sorted(places, key=slots.__getitem__)
        self.cache, self.span = cache, max(MIN_KEYS, max(lengths) + 1)
        self.ordered = order == list(places)  # the stream is in slot order
        self.slots = torch.tensor(slots, device=device)  # [R]
        self.positions = torch.tensor(lengths, device=device)
        self.order = torch.tensor(order, device=device)
        self.lengths_by_slot = self.positions[self.order]
        self.masks: dict[int | None, Tensor] = {}

    def _mask(self, window: int | None, heads: int) -> Tensor:
        if window not in self.masks:
            at = torch.arange(self.span, device=self.slots.device).expand(len(self.slots), -1)
            sees = causal_mask(self.lengths_by_slot[:, None], at, window)[:, 0].repeat_interleave(heads, dim=0)
            self.masks[window] = self.cache.layers[0].new_zeros(sees.shape).masked_fill_(~sees, -torch.inf)
        return self.masks[window]  # [R·heads, 1, span], added to the scores

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, scale: float, window: int | None) -> Tensor:
        rows, heads, head_dim = len(self.slots), k.shape[0], k.shape[-1]
        stored = self.cache.write(layer, self.slots, self.positions, k, v)
        keys, values = (x[:rows, :, : self.span].flatten(0, 1) for x in stored)
        # Grouped-query attention: the query heads of a key head are its queries, so that keys are read once.
        by_slot = self._reorder(q.transpose(0, 1), self.order).reshape(rows * heads, -1, head_dim)
        # Two plain matmuls: SDPA takes a third longer for so few queries.
        scores = torch.baddbmm(self._mask(window, heads), by_slot, keys.transpose(1, 2), alpha=scale)
        out = torch.bmm(scores.softmax(dim=-1, dtype=torch.float32).to(values.dtype), values)
        return self._reorder(out.view(rows, q.shape[0], head_dim), self.slots)

    def _reorder(self, x: Tensor, index: Tensor) -> Tensor:
        return x if self.ordered else x.index_select(0, index)


class FlashPrefillLayout:
    """`PrefillLayout` with packed rows and varlen flash attention: on CUDA in half precision."""

    def __init__(
        self, cache: KVCache, slots: Sequence[int], starts: Sequence[int], counts: Sequence[int], tokens: np.ndarray
    ) -> None:
        row, first, many = np.array(slots), np.array(starts), np.array(counts)
        at = np.concatenate([np.arange(a, a + n) for a, n in zip(first, many, strict=True)])
        known = np.concatenate([np.arange(a + n) for a, n in zip(first, many, strict=True)])
        cumulative = _cu_seqlens(many), _cu_seqlens(first + many)
        arrays = (tokens, row.repeat(many), at, row.repeat(first + many), known, *cumulative)
        on_device = to_device_packed(arrays, cache.device)
        self.tokens, self.slots, self.positions, self.key_slots, self.key_positions, queries, keys = on_device
        self.varlen = VarlenRows(queries, keys, int(many.max()), int((first + many).max()), None)
        self.fresh = not first.any()  # no row has cached tokens

    def attend(self, cache: Tensor, q: Tensor, k: Tensor, v: Tensor, scale: float, window: int | None) -> Tensor:
        """q, k, v [T, heads, head_dim], the latter two in the cache already → [T, heads, head_dim]."""
        if not self.fresh:
            k, v = (x[self.key_slots, :, self.key_positions] for x in cache)
        return flash_attention(q, k, v, self.varlen, scale, window)


def pinned(array: np.ndarray, device: torch.device) -> Tensor:
    """In pinned memory, from which a GPU copies asynchronously."""
    tensor = torch.from_numpy(array)
    return tensor.pin_memory() if device.type == "cuda" else tensor


def to_device_packed(arrays: Sequence[np.ndarray], device: torch.device) -> list[Tensor]:
    """Copy int32 arrays in one transfer, each aligned to 16 bytes: Triton would recompile for other alignments."""
    room = [-(-len(array) // 4) * 4 for array in arrays]
    padded = [np.pad(array, (0, more - len(array))) for array, more in zip(arrays, room, strict=True)]
    there = pinned(np.concatenate(padded).astype(np.int32), device).to(device, non_blocking=True)
    return [piece[: len(array)] for array, piece in zip(arrays, there.split(room), strict=True)]


def _cu_seqlens(counts: np.ndarray) -> np.ndarray:
    """Cumulative lengths, from 0."""
    return np.concatenate([[0], counts.cumsum()])


class PrefillLayout:
    """Prefill: several new tokens for some slots, each after the tokens that its slot already holds."""

    def __init__(self, cache: KVCache, slots: Sequence[int], starts: Sequence[int], counts: Sequence[int]) -> None:
        device = cache.device
        self.cache = cache
        self.rows = torch.tensor(slots, device=device)
        self.starts = torch.tensor(starts, device=device)
        self.counts = torch.tensor(counts, device=device)
        step = torch.arange(max(counts), device=device)
        self.real = step < self.counts[:, None]  # [R, N]
        self.at = torch.where(self.real, self.starts[:, None] + step, PAD_POSITION)
        self.span = int((self.starts + self.counts).max())
        self.positions = self.at[self.real]  # [T], of each token in the stream
        self.slots = self.rows.repeat_interleave(self.counts)
        self.masks: dict[int | None, Tensor] = {}

    def _mask(self, window: int | None) -> Tensor:
        if window not in self.masks:
            at = torch.arange(self.span, device=self.at.device).expand(len(self.rows), -1)
            # Padded queries see all keys, so that their softmax is not NaN; their output is dropped.
            self.masks[window] = causal_mask(self.at, at, window) | ~self.real[:, None, :, None]
        return self.masks[window]

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, scale: float, window: int | None) -> Tensor:
        keys, values = self.cache.write(layer, self.slots, self.positions, k, v)
        padded = q.new_zeros(*self.real.shape, q.shape[0], q.shape[-1])
        padded[self.real] = q.transpose(0, 1)
        out = F.scaled_dot_product_attention(
            padded.transpose(1, 2),
            keys[self.rows, :, : self.span].contiguous(),  # otherwise SDPA falls back to a slow path
            values[self.rows, :, : self.span],
            attn_mask=self._mask(window),
            scale=scale,
            enable_gqa=q.shape[0] != k.shape[0],
        )
        return out.transpose(1, 2)[self.real]
