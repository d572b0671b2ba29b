"""Who sits in which slot of the cache.

Some rows speak, some are read and will speak next, and some have finished and are kept while there is
room: a conversation may go on from them. A new row takes over the finished row it continues, or copies
the beginning it shares with any. Where a step reads one piece of the cache, the first slots belong to
the rows that speak, without gaps; elsewhere nobody ever moves.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count

import numpy as np

from coterie.engines.native.kv_cache import SlotCache
from coterie.engines.native.prefix_index import Beginnings, Key, key_of
from coterie.models.chat import StopText
from coterie.types import Sample, Sampling, Stop

SHARE = 16  # tokens; a shorter common beginning is not worth a copy
FEW = 2  # tokens that are sooner computed than waited for


@dataclass(eq=False)
class Row:
    """One request, from waiting to finished, and after that a beginning for others."""

    adapter: str | None
    version: int
    seed: int
    sampling: Sampling
    ids: np.ndarray  # the prompt, then room for the answer
    prompt: int  # its length
    answered: asyncio.Future[Sample]
    stops: StopText | None
    length: int  # tokens known
    computed: int = 0  # tokens whose keys and values are in the cache
    slot: int = -1
    finished: int = 0  # a clock: the smallest was finished first; 0 is not yet
    logprobs: list[float] = field(default_factory=list)
    stop: Stop | None = None

    @property
    def narrow(self) -> bool:
        """Whether only some tokens may be drawn."""
        return self.sampling.top_p < 1 or self.sampling.top_k > 0

    def unread(self) -> None:
        """Nothing of it is in the cache any more."""
        self.slot, self.computed = -1, 0

    @property
    def key(self) -> Key:
        """What others may share of it: what is computed, or will be before it speaks."""
        return key_of(self.adapter, self.version, self.ids[: max(self.computed, self.prompt - 1)])


class Seats:
    """The slots of one cache and the rows in them."""

    def __init__(self, cache: SlotCache, limit: int, gathered: bool) -> None:
        """`gathered`: those who speak must have the first slots."""
        self.cache, self.limit, self.gathered = cache, limit, gathered
        self.rows: list[Row | None] = []  # by slot
        self.active: list[Row] = []  # who speaks; by slot, where they are gathered
        self.clock = count(1)
        self.known: dict[Row, Key] = {}
        self.beginnings: Beginnings[Row] = Beginnings()

    @property
    def speaking(self) -> int:
        return len(self.active)

    def forget(self, adapter: str | None) -> None:
        """What this adapter has read is of no use any more to those who do not speak yet: its weights have moved."""
        speaking = set(self.active)
        for row in self.rows:
            if row is not None and row.adapter == adapter and row not in speaking:
                self._put(row.slot, None)
                row.unread()

    def clear(self) -> None:
        assert not self.active, "somebody still speaks"
        self._empty()
        self.cache.clear()

    def _empty(self) -> None:
        for row in self.rows:
            if row is not None:
                row.unread()
        self.rows, self.active = [], []
        self.known, self.beginnings = {}, Beginnings()

    def _put(self, slot: int, row: Row | None) -> None:
        """Whoever sat there before is forgotten."""
        if (old := self.rows[slot]) is not None:
            self.beginnings.drop(self.known.pop(old), old)
        self.rows[slot] = row
        if row is not None:
            self.known[row] = row.key
            self.beginnings.add(row.key, row)

    def leave(self, row: Row) -> None:
        """The row has finished, or nobody waits for it; if it spoke, the last one who speaks takes its place."""
        if row in self.active:
            place, last = self.active.index(row), self.active.pop()
            if last is not row:
                self.active[place] = last
                self._gather(last, place)
        self._put(row.slot, None)
        self._put(row.slot, row)  # with all that it said
        row.finished = next(self.clock)

    def join(self, row: Row) -> None:
        """The row speaks from now on."""
        self._gather(row, self.speaking)
        self.active.append(row)

    def _gather(self, row: Row, place: int) -> None:
        if self.gathered:
            self._swap(row.slot, place)

    def enter(self, rows: list[Row], ahead: bool) -> list[tuple[Row, Row, int]]:
        """Seat new rows, who join at once or, `ahead` of their time, stay behind: then no other row moves.

        Returns the copies still to make, (row, source, tokens), where the source is a row of the same call whose
        own prompt has to be computed first.
        """
        self._make_room(rows)
        later: list[tuple[Row, Row, int]] = []
        for row in rows:
            source, shared = self._sooner(*self._longest_beginning(row), later)
            if self._sit(row, source, shared, ahead) or source is None:
                continue
            if source.computed >= shared:
                self.cache.copy(source.slot, row.slot, shared)
                row.computed = shared
            else:
                later.append((row, source, shared))
        return later

    def _sooner(self, source: Row | None, shared: int, later: list[tuple[Row, Row, int]]) -> tuple[Row | None, int]:
        """Rather a bit less from the row that the source itself waits for: one forward less before all can speak."""
        for waiting, first, less in later:
            if waiting is source and less >= shared - FEW:
                return first, min(less, shared)
        return source, shared

    def _sit(self, row: Row, source: Row | None, shared: int, ahead: bool) -> bool:
        """Seat one row; True if it took over the source's slot."""
        slot = source.slot if source is not None and self._ends(source, shared) else self._spare()
        taken = source is not None and slot == source.slot
        self._put(slot, row)
        row.slot, row.computed = slot, shared if taken else 0
        if not ahead:
            self.join(row)
        return taken

    def _ends(self, source: Row, shared: int) -> bool:
        """Whether a finished row lives on as a whole in one that shares so much with it."""
        return source.finished > 0 and shared == source.computed

    def _spare(self) -> int:
        """A free slot, or that of the row which finished longest ago."""
        behind = [slot for slot, row in enumerate(self.rows) if row is None or row.finished]
        return min(behind, key=lambda slot: row.finished if (row := self.rows[slot]) is not None else 0)

    def room_for(self, rows: Sequence[Row]) -> list[Row]:
        """As many of the first of these as find room beside all who speak or will speak."""
        needed, longest, allowed = self._needed(), 0, 0
        found: list[Row] = []
        for row in rows:
            if len(row.ids) > longest:
                longest = len(row.ids)
                allowed = self.cache.most(self.limit, longest)
                if needed and longest > self.cache.capacity and allowed < self.cache.slots:
                    break  # so long that there will be fewer slots: it waits until nobody needs one
            if needed + len(found) >= allowed:
                break
            found.append(row)
        return found

    def _needed(self) -> int:
        return sum(row is not None and not row.finished for row in self.rows)

    def _make_room(self, rows: list[Row]) -> None:
        longest, needed = max(len(row.ids) for row in rows), self._needed() + len(rows)
        limit = self.cache.most(self.limit, longest)
        if longest > self.cache.capacity and limit < len(self.rows) and needed == len(rows):
            self._empty()
            self.cache.drop()
        enough = longest <= self.cache.capacity and needed <= len(self.rows)
        slots = max(len(self.rows), needed, min(limit, self._wanted(rows, enough)))
        self.cache.reserve(slots, longest)
        self.rows += [None] * (slots - len(self.rows))

    def _wanted(self, rows: list[Row], enough: bool) -> int:
        """Slots with which nobody who has finished would have to go. On a GPU, where captured steps do not survive a
        move, at once as many as may be, and no more while there are enough."""
        if self.cache.device.type == "cuda":
            return 0 if enough else self.limit
        beginnings = [self._longest_beginning(row) for row in rows]
        going_on = {source for source, shared in beginnings if source is not None and self._ends(source, shared)}
        return sum(row is not None for row in self.rows) - len(going_on) + len(rows)

    def _longest_beginning(self, row: Row) -> tuple[Row | None, int]:
        source, shared = self.beginnings.longest(key_of(row.adapter, row.version, row.ids[: row.prompt - 1]))
        return (source, shared) if shared >= SHARE else (None, 0)

    def _swap(self, a: int, b: int) -> None:
        if a == b:
            return
        one, two = self.rows[a], self.rows[b]
        self.cache.swap(a, b, one.computed if one else 0, two.computed if two else 0)
        self.rows[a], self.rows[b] = two, one
        for slot in (a, b):
            if (row := self.rows[slot]) is not None:
                row.slot = slot
