"""The slot scheduler: which row has which slot of the KV cache, prefix cache hits, and slot eviction.

Running rows decode. Ready rows are prefilled ahead and will run next. Finished rows stay in the cache, until their slot
is evicted (LRU: least recently finished first), as prefixes for new rows: a new row takes over the slot of the finished
row that it continues, or copies the keys and values of the longest common prefix. With `compact`, running rows have the
first slots, without gaps; otherwise rows never move.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count

import numpy as np

from coterie.engines.native.kv_cache import KVCache
from coterie.engines.native.prefix_index import PrefixIndex, PrefixKey, prefix_key
from coterie.models.chat import StopText
from coterie.types import OnTokens, Sample, Sampling, Stop

MIN_SHARED = 16  # tokens; a shorter common prefix is not worth a copy
FREE, IN_USE = 0, np.iinfo(np.int64).max  # in `eviction_order`: evicted first, and never evicted
FEW_TOKENS = 2  # recomputing so many tokens takes less time than waiting for another row's prefill


@dataclass(eq=False)
class Row:
    """One request, from waiting to finished; after that a cached prefix for others."""

    adapter: str | None
    version: int
    seed: int
    sampling: Sampling
    ids: np.ndarray  # the prompt, then room for the reply
    prompt: int  # its length
    future: asyncio.Future[Sample]
    stop_text: StopText | None
    length: int  # known tokens
    on_tokens: OnTokens | None = None
    place: int = 0  # in the queue of waiting requests
    computed: int = 0  # tokens whose keys and values are in the cache
    slot: int = -1
    finished: int = 0  # logical time at which it finished; 0: not finished
    logprobs: list[float] = field(default_factory=list)
    stop: Stop | None = None

    @property
    def truncates(self) -> bool:
        """True if top-p or top-k truncates the distribution."""
        return self.sampling.top_p < 1 or self.sampling.top_k > 0

    def mark_evicted(self) -> None:
        """The row has lost its slot, and its keys and values."""
        self.slot, self.computed = -1, 0

    @property
    def key(self) -> PrefixKey:
        """The tokens that other rows may share: those computed, or to be computed by its prefill."""
        return prefix_key(self.adapter, self.version, self.ids[: max(self.computed, self.prompt - 1)])


PrefixCopy = tuple[Row, Row, int]  # target row, source row, tokens


class SlotScheduler:
    """Assigns the slots of one KV cache to rows."""

    def __init__(self, cache: KVCache, limit: int, compact: bool) -> None:
        """`limit`: slots at most; `compact`: running rows must have the first slots."""
        self.cache, self.limit, self.compact = cache, limit, compact
        self.rows: list[Row | None] = []  # by slot
        self.eviction_order = np.zeros(0, dtype=np.int64)  # by slot: FREE, when its row finished, or IN_USE
        self.running: list[Row] = []  # by slot, if compact
        self.clock = count(1)
        self.keys: dict[Row, PrefixKey] = {}
        self.index: PrefixIndex[Row] = PrefixIndex()

    def invalidate(self, adapter: str | None) -> None:
        """Evict what this adapter's old weights computed, except for running rows."""
        running = set(self.running)
        for row in self.rows:
            if row is not None and row.adapter == adapter and row not in running:
                self._assign(row.slot, None)
                row.mark_evicted()

    def clear(self) -> None:
        assert not self.running, "rows are still running"
        self._evict_all()
        self.cache.clear()

    def _evict_all(self) -> None:
        for row in self.rows:
            if row is not None:
                row.mark_evicted()
        self.rows, self.running, self.eviction_order = [], [], self.eviction_order[:0]
        self.keys, self.index = {}, PrefixIndex()

    def _assign(self, slot: int, row: Row | None) -> None:
        """Give a slot to a row; the previous row leaves the prefix index."""
        if (old := self.rows[slot]) is not None:
            self.index.remove(self.keys.pop(old), old)
        self.rows[slot] = row
        self.eviction_order[slot] = FREE if row is None else row.finished or IN_USE
        if row is not None:
            self.keys[row] = key = row.key
            self.index.add(key, row)

    def finish(self, row: Row) -> None:
        """The row has finished or was cancelled; its place in `running` goes to the last running row."""
        if row in self.running:
            place, last = self.running.index(row), self.running.pop()
            if last is not row:
                self.running[place] = last
                self._move(last, place)
        row.finished = next(self.clock)
        self._assign(row.slot, row)  # its key now has the reply as well

    def run(self, row: Row) -> None:
        """The row decodes from now on."""
        self._move(row, len(self.running))
        self.running.append(row)

    def _move(self, row: Row, place: int) -> None:
        if self.compact:
            self._swap(row.slot, place)

    def admit(self, rows: list[Row], ahead: bool) -> list[PrefixCopy]:
        """Give slots to new rows. They run at once; with `ahead` they only become ready, and no other row moves.

        Prefix cache hits are copied. Returns the copies that must wait, because their source is a row of the same call
        whose own prompt has to be computed first.
        """
        self._reserve(rows)
        later: list[PrefixCopy] = []
        for row in rows:
            source, shared = self._earlier_source(*self._longest_cached_prefix(row), later)
            if self._place(row, source, shared, ahead) or source is None:
                continue
            if source.computed >= shared:
                self.cache.copy(source.slot, row.slot, shared)
                row.computed = shared
            else:
                later.append((row, source, shared))
        return later

    def _earlier_source(self, source: Row | None, shared: int, later: list[PrefixCopy]) -> tuple[Row | None, int]:
        """If the source itself waits for a copy from a third row, copy from that row, at most a few tokens less."""
        for waiting, first, less in later:
            if waiting is source and less >= shared - FEW_TOKENS:
                return first, min(less, shared)
        return source, shared

    def _place(self, row: Row, source: Row | None, shared: int, ahead: bool) -> bool:
        """Give a row a slot; True if it took over the source's."""
        slot = source.slot if source is not None and self._continues(source, shared) else self._evict_slot()
        taken = source is not None and slot == source.slot
        self._assign(slot, row)
        row.slot, row.computed = slot, shared if taken else 0
        if not ahead:
            self.run(row)
        return taken

    def _continues(self, source: Row, shared: int) -> bool:
        """True if a row with this shared prefix extends all of a finished row."""
        return source.finished > 0 and shared == source.computed

    def _evict_slot(self) -> int:
        """A free slot, or that of the least recently finished row."""
        slot = int(self.eviction_order.argmin())
        assert self.eviction_order[slot] != IN_USE, "all slots are in use"
        return slot

    def admissible(self, rows: Sequence[Row]) -> list[Row]:
        """The longest prefix of `rows` that fits beside all running and ready rows."""
        used, longest, allowed = self._slots_in_use(), 0, 0
        found: list[Row] = []
        for row in rows:
            if len(row.ids) > longest:
                longest = len(row.ids)
                allowed = self.cache.max_slots(self.limit, longest)
                if used and longest > self.cache.capacity and allowed < self.cache.slots:
                    break  # longer slots mean fewer of them: wait until none is in use, then reallocate
            if used + len(found) >= allowed:
                break
            found.append(row)
        return found

    def _slots_in_use(self) -> int:
        return int((self.eviction_order == IN_USE).sum())

    def _reserve(self, rows: list[Row]) -> None:
        """Grow the cache for new rows. If it must have fewer, longer slots, evict everything first."""
        longest, needed = max(len(row.ids) for row in rows), self._slots_in_use() + len(rows)
        limit = self.cache.max_slots(self.limit, longest)
        if longest > self.cache.capacity and limit < len(self.rows) and needed == len(rows):
            self._evict_all()
            self.cache.free()
        enough = longest <= self.cache.capacity and needed <= len(self.rows)
        slots = max(len(self.rows), needed, min(limit, self._slots_without_eviction(rows, enough)))
        self.cache.reserve(slots, longest)
        self.rows += [None] * (slots - len(self.rows))
        self.eviction_order = np.pad(self.eviction_order, (0, slots - len(self.eviction_order)), constant_values=FREE)

    def _slots_without_eviction(self, rows: list[Row], enough: bool) -> int:
        """The number of slots with which no finished row is evicted. On a GPU all slots are allocated at once, as
        growing the cache invalidates the CUDA graphs; 0 if the present ones are enough."""
        if self.cache.device.type == "cuda":
            return 0 if enough else self.limit
        hits = [self._longest_cached_prefix(row) for row in rows]
        continued = {source for source, shared in hits if source is not None and self._continues(source, shared)}
        return sum(row is not None for row in self.rows) - len(continued) + len(rows)

    def _longest_cached_prefix(self, row: Row) -> tuple[Row | None, int]:
        source, shared = self.index.longest_prefix(prefix_key(row.adapter, row.version, row.ids[: row.prompt - 1]))
        return (source, shared) if shared >= MIN_SHARED else (None, 0)

    def is_cached_conversation(self, row: Row) -> bool:
        """True if the prompt continues a finished row past its reply; that slot may be evicted while this row waits."""
        source, shared = self._longest_cached_prefix(row)
        return source is not None and source.finished > 0 and shared >= source.prompt

    def _swap(self, a: int, b: int) -> None:
        if a == b:
            return
        one, two = self.rows[a], self.rows[b]
        self.cache.swap(a, b, one.computed if one else 0, two.computed if two else 0)
        self.rows[a], self.rows[b] = two, one
        self.eviction_order[[a, b]] = self.eviction_order[[b, a]]
        for slot in (a, b):
            if (row := self.rows[slot]) is not None:
                row.slot = slot
