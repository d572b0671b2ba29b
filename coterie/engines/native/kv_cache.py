"""Keys and values of every row the engine knows, one slot per row."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from coterie.kernels.varlen_attention import Ragged, flash
from coterie.models.attention import NOWHERE, allowed

STRIDE, FAR = 16, 64  # tokens by which capacity grows; on CUDA, where captured steps do not survive a move
FEWEST = 64  # keys: MKL takes longer for fewer
PART = 0.5  # of a GPU's free memory that slots may take
FULL = 0.9  # of a GPU's memory; beyond it slots are given back while the learner works

Pair = tuple[Tensor, Tensor]  # keys and values


class SlotCache:
    """A tensor [keys and values, slots, heads, capacity, width] per layer, grown when a row needs it."""

    def __init__(self, layers: int, heads: int, width: int, dtype: torch.dtype, device: torch.device) -> None:
        self.layers = [torch.empty(2, 0, heads, 0, width, dtype=dtype, device=device) for _ in range(layers)]
        self.pairs = [pair(layer) for layer in self.layers]
        self.whole: Tensor | None = None
        self.cleared = self.seen = self.kept = False  # ever; an update after that; the slots, during the last one

    @property
    def device(self) -> torch.device:
        return self.layers[0].device

    @property
    def heads(self) -> int:
        return self.layers[0].shape[2]

    @property
    def slots(self) -> int:
        return self.layers[0].shape[1]

    @property
    def capacity(self) -> int:
        return self.layers[0].shape[3]

    def reserve(self, slots: int, capacity: int) -> None:
        """Make room for so many rows of so many tokens; what is stored stays.

        On a CPU layer by layer, so that two copies of the whole never exist. Zeros, for a masked key still takes part:
        with weight 0, and 0 × NaN is NaN.
        """
        capacity = self._rounded(capacity)
        if slots <= self.slots and capacity <= self.capacity:
            return
        if self.device.type == "cuda":
            self._reserve_as_one(max(slots, self.slots), max(capacity, self.capacity))
            return
        for i, old in enumerate(self.pairs):
            two, had, heads, length, width = self.layers[i].shape
            self.layers[i] = self.layers[i].new_zeros(two, max(slots, had), heads, max(capacity, length), width)
            self.pairs[i] = pair(self.layers[i])
            for new, stored in zip(self.pairs[i], old, strict=True):
                new[:had, :, :length] = stored

    def _reserve_as_one(self, slots: int, capacity: int) -> None:
        """One tensor for all layers, so that to move a row is one launch."""
        old, (_, had, heads, length, width) = self.layers, self.layers[0].shape
        self.whole = old[0].new_zeros(len(old), 2, slots, heads, capacity, width)
        for new, layer in zip(self.whole, old, strict=True):
            new[:, :had, :, :length] = layer
        self.layers, self.pairs = list(self.whole), [pair(layer) for layer in self.whole]

    def _pieces(self) -> Sequence[Tensor]:
        """What has to be moved to move a row: [..., slots, heads, capacity, width]."""
        return [piece for pair in self.pairs for piece in pair] if self.whole is None else [self.whole]

    def copy(self, source: int, target: int, length: int) -> None:
        for piece in self._pieces():
            piece[..., target, :, :length, :] = piece[..., source, :, :length, :]

    def swap(self, a: int, b: int, length_a: int, length_b: int) -> None:
        """Exchange two rows; only their live lengths move."""
        for piece in self._pieces():
            kept = piece[..., a, :, :length_a, :].clone()
            piece[..., a, :, :length_b, :] = piece[..., b, :, :length_b, :]
            piece[..., b, :, :length_a, :] = kept

    def write(self, layer: int, slots: Tensor, positions: Tensor, k: Tensor, v: Tensor) -> Pair:
        """Store k and v [heads, T, width] of tokens that stand there; gives the layer's keys and values."""
        keys, values = self.pairs[layer]
        keys[slots, :, positions] = k.transpose(0, 1)
        values[slots, :, positions] = v.transpose(0, 1)
        return keys, values

    def most(self, slots: int, capacity: int) -> int:
        """How many of so many slots, of that many tokens each, a GPU has room for; a CPU says itself if it has none."""
        there = slots <= self.slots and capacity <= self.capacity
        if there or self.device.type != "cuda":  # to ask a GPU takes half a millisecond
            return slots
        layer, length = self.layers[0], max(self._rounded(capacity), self.capacity)
        slot = len(self.layers) * 2 * layer.shape[2] * length * layer.shape[4] * layer.element_size()
        free = torch.cuda.mem_get_info(self.device)[0] + torch.cuda.memory_reserved(self.device)
        free += self.size - torch.cuda.memory_allocated(self.device)
        return min(slots, max(1, int(PART * free / slot)))

    def _rounded(self, capacity: int) -> int:
        stride = FAR if self.device.type == "cuda" else STRIDE
        return max(FEWEST, -(-capacity // stride) * stride)

    @property
    def size(self) -> int:
        """In bytes."""
        return sum(layer.nbytes for layer in self.layers)

    def clear(self) -> None:
        """Give the memory back, or keep it, where it has been seen that there is enough for the learner as well."""
        self.cleared = True
        if self.whole is None or not self._affordable():
            self.drop()

    def learned(self) -> None:
        """Weights have been updated: if the slots were given back for that, what both take has been seen."""
        self.seen = self.seen or self.cleared

    def drop(self) -> None:
        self.layers = [layer[:, :0, :, :0].clone() for layer in self.layers]
        self.pairs = [pair(layer) for layer in self.layers]
        self.whole = None

    def _affordable(self) -> bool:
        """Before the first update nobody knows what it takes, and the slots make way for it."""
        if not self.seen:
            return False
        most = torch.cuda.max_memory_allocated(self.device) + (0 if self.kept else self.size)
        self.kept = most < FULL * torch.cuda.get_device_properties(self.device).total_memory
        return self.kept


def pair(layer: Tensor) -> Pair:
    """Keys and values of a layer, [slots, heads, capacity, width] each.

    On a CPU the keys of one slot and head lie in memory as their transpose: a step's scores then take two thirds of
    the time.
    """
    keys, values = layer
    if layer.device.type != "cpu":
        return keys, values
    slots, heads, capacity, width = keys.shape
    return keys.view(slots, heads, width, capacity).transpose(2, 3), values


class Decode:
    """One new token for each of the first R slots; the stream may order them as the adapters like."""

    def __init__(self, cache: SlotCache, slots: Sequence[int], lengths: Sequence[int]) -> None:
        """`slots` of the stream's tokens, `lengths`: how many tokens stand before each."""
        device, places = cache.device, range(len(slots))
        order = sorted(places, key=slots.__getitem__)
        self.cache, self.span = cache, max(FEWEST, max(lengths) + 1)
        self.ordered = order == list(places)  # the stream is in the order of the slots
        self.slots = torch.tensor(slots, device=device)  # [R]
        self.positions = torch.tensor(lengths, device=device)
        self.back = torch.tensor(order, device=device)
        self.lengths_by_slot = self.positions[self.back]
        self.masks: dict[int | None, Tensor] = {}

    def _mask(self, window: int | None, heads: int) -> Tensor:
        if window not in self.masks:
            at = torch.arange(self.span, device=self.slots.device).expand(len(self.slots), -1)
            sees = allowed(self.lengths_by_slot[:, None], at, window)[:, 0].repeat_interleave(heads, dim=0)
            self.masks[window] = self.cache.layers[0].new_zeros(sees.shape).masked_fill_(~sees, -torch.inf)
        return self.masks[window]  # [R·heads, 1, span], to be added to the scores

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, scale: float, window: int | None) -> Tensor:
        rows, heads, width = len(self.slots), k.shape[0], k.shape[-1]
        stored = self.cache.write(layer, self.slots, self.positions, k, v)
        keys, values = (x[:rows, :, : self.span].flatten(0, 1) for x in stored)
        # The query heads that share a key head stand as its queries: keys are read once, not once per head.
        by_slot = self._moved(q.transpose(0, 1), self.back).reshape(rows * heads, -1, width)
        # Two plain products: SDPA takes a third longer for so few queries.
        scores = torch.baddbmm(self._mask(window, heads), by_slot, keys.transpose(1, 2), alpha=scale)
        out = torch.bmm(scores.softmax(dim=-1, dtype=torch.float32).to(values.dtype), values)
        return self._moved(out.view(rows, q.shape[0], width), self.slots)

    def _moved(self, x: Tensor, index: Tensor) -> Tensor:
        return x if self.ordered else x.index_select(0, index)


class Flash:
    """As `Prefill`, by a kernel that knows rows of any length: on CUDA, in half precision."""

    def __init__(
        self, cache: SlotCache, slots: Sequence[int], starts: Sequence[int], counts: Sequence[int], tokens: np.ndarray
    ) -> None:
        row, first, many = np.array(slots), np.array(starts), np.array(counts)
        at = np.concatenate([np.arange(a, a + n) for a, n in zip(first, many, strict=True)])
        known = np.concatenate([np.arange(a + n) for a, n in zip(first, many, strict=True)])
        numbers = (tokens, row.repeat(many), at, row.repeat(first + many), known, _ends(many), _ends(first + many))
        on_device = sent(numbers, cache.device)
        self.tokens, self.rows, self.positions, self.key_rows, self.key_at, queries, keys = on_device
        self.ragged = Ragged(queries, keys, int(many.max()), int((first + many).max()), None)
        self.fresh = not first.any()

    def flash(self, cache: Tensor, q: Tensor, k: Tensor, v: Tensor, scale: float, window: int | None) -> Tensor:
        """q, k, v [T, heads, width], the latter two in the cache already → [T, heads, width]."""
        if not self.fresh:
            k, v = (x[self.key_rows, :, self.key_at] for x in cache)
        return flash(q, k, v, self.ragged, scale, window)


def pinned(array: np.ndarray, device: torch.device) -> Tensor:
    """In memory from which a GPU fetches it when its turn comes, without the host waiting for that."""
    tensor = torch.from_numpy(array)
    return tensor.pin_memory() if device.type == "cuda" else tensor


def sent(arrays: Sequence[np.ndarray], device: torch.device) -> list[Tensor]:
    """Whole numbers, all in one go. Each begins at 16 bytes: a kernel is made anew for what begins elsewhere."""
    room = [-(-len(array) // 4) * 4 for array in arrays]
    together = [np.pad(array, (0, more - len(array))) for array, more in zip(arrays, room, strict=True)]
    there = pinned(np.concatenate(together).astype(np.int32), device).to(device, non_blocking=True)
    return [piece[: len(array)] for array, piece in zip(arrays, there.split(room), strict=True)]


def _ends(counts: np.ndarray) -> np.ndarray:
    """Where each row begins in the stream, and where the last one ends."""
    return np.concatenate([[0], counts.cumsum()])


class Prefill:
    """Several new tokens for some slots, each after what its slot already holds."""

    def __init__(self, cache: SlotCache, slots: Sequence[int], starts: Sequence[int], counts: Sequence[int]) -> None:
        device = cache.device
        self.cache = cache
        self.rows = torch.tensor(slots, device=device)
        self.starts = torch.tensor(starts, device=device)
        self.counts = torch.tensor(counts, device=device)
        step = torch.arange(max(counts), device=device)
        self.real = step < self.counts[:, None]  # [R, N]
        self.at = torch.where(self.real, self.starts[:, None] + step, NOWHERE)
        self.span = int((self.starts + self.counts).max())
        self.positions = self.at[self.real]  # [T], of each token in the stream
        self.slots = self.rows.repeat_interleave(self.counts)
        self.masks: dict[int | None, Tensor] = {}

    def _mask(self, window: int | None) -> Tensor:
        if window not in self.masks:
            at = torch.arange(self.span, device=self.at.device).expand(len(self.rows), -1)
            # A padded query sees all, so that its softmax is a number; nobody reads it.
            self.masks[window] = allowed(self.at, at, window) | ~self.real[:, None, :, None]
        return self.masks[window]

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, scale: float, window: int | None) -> Tensor:
        keys, values = self.cache.write(layer, self.slots, self.positions, k, v)
        padded = q.new_zeros(*self.real.shape, q.shape[0], q.shape[-1])
        padded[self.real] = q.transpose(0, 1)
        out = F.scaled_dot_product_attention(
            padded.transpose(1, 2),
            keys[self.rows, :, : self.span].contiguous(),  # or SDPA takes another way, which is slow
            values[self.rows, :, : self.span],
            attn_mask=self._mask(window),
            scale=scale,
            enable_gqa=q.shape[0] != k.shape[0],
        )
        return out.transpose(1, 2)[self.real]
