"""The default engine: samples in this process, on the learner's own weights.

Requests enter and leave between steps; no row pads another. A prompt is computed up to its last
token, and that token is the row's first step: all log-probs come out of steps. Where steps run while
the host waits, the prompts of those who enter next are read behind them.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence

import numpy as np
import torch

from coterie.engines.native.decode import Eager, Steps
from coterie.engines.native.kv_cache import SlotCache
from coterie.engines.native.slots import Row, Seats
from coterie.engines.request_checks import must_be_readable
from coterie.kernels.sampling import Sampler
from coterie.models.base import Base
from coterie.models.chat import StopText
from coterie.types import Sample, Sampling
from coterie.watchdog import watchdog_paused

SETTLE = 8  # turns of the event loop in which a workflow that was answered may ask again


class NativeEngine:
    """Continuous batching for all policies that live on one base."""

    def __init__(self, base: Base, policies: dict[str, str | None], rows: int = 64, context: int | None = None) -> None:
        """`policies` names the adapter each policy speaks with; None is the base itself."""
        assert base.kept is not None, f"{base.folder}: only the hf engine can drive this model"
        dtype = next(base.model.parameters()).dtype
        self.base, self.policies, self.rows = base, dict(policies), rows
        self.few = max(1, rows // 4)  # rows that may be missing for a while, and rows that are read ahead
        self.context = min(context or base.context, base.context)
        cache = SlotCache(*base.kept, dtype, base.device)
        self.cache = cache
        self.sampler = Sampler(base.vocab_size, base.device)
        self.steps = steps(
            base, cache, self.sampler, list({name: None for name in policies.values() if name is not None})
        )
        self.seats = Seats(cache, limit=2 * rows, gathered=self.steps.gathered)
        self.versions = dict.fromkeys(policies, 0)
        self.waiting: list[Row] = []
        self.driver: asyncio.Task[None] | None = None

    def weights_changed(self, policy: str, version: int) -> None:
        """The weights moved in place: what was computed with the old ones is of no use, and who waits will speak with
        the new."""
        adapter, before = self.policies[policy], self.versions[policy]
        self.versions[policy] = version
        self.seats.forget(adapter)
        for row in self.waiting:
            if row.adapter == adapter:
                row.version = version
        self.steps.moved()
        if version > before:
            self.cache.learned()

    def clear(self) -> None:
        """Give the cache's memory back."""
        self.seats.clear()

    async def sample(self, policy: str, prompt_ids: Sequence[int], seed: int, sampling: Sampling) -> Sample:
        must_be_readable(prompt_ids, self.base.vocab_size)
        room = min(sampling.max_tokens, self.context - len(prompt_ids))
        if room <= 0:
            return Sample((), (), "length", self.versions[policy])
        ids = np.zeros(len(prompt_ids) + room, dtype=np.int64)
        ids[: len(prompt_ids)] = prompt_ids
        stops = StopText(self.base.tokenizer, sampling.stop) if sampling.stop else None
        answered: asyncio.Future[Sample] = asyncio.get_running_loop().create_future()
        adapter, version, length = self.policies[policy], self.versions[policy], len(prompt_ids)
        self.waiting.append(Row(adapter, version, seed, sampling, ids, length, answered, stops, length))
        if self.driver is None or self.driver.done():
            self.driver = asyncio.create_task(self._drive())
            self.driver.add_done_callback(self._stopped)
        return await answered

    async def _drive(self) -> None:
        finished = True
        while self.waiting or self.seats.speaking:
            for _ in range(SETTLE if finished else 1):
                await asyncio.sleep(0)
            with watchdog_paused():
                for row in [*self.seats.active, *self.waiting]:
                    if row.answered.done() and row.slot >= 0:  # cancelled: nobody waits for it any more
                        self.seats.leave(row)
                self._admit()
                finished = not self.seats.speaking or self._step()

    def _stopped(self, driver: asyncio.Task[None]) -> None:
        """If the driver failed, so did every request that waits on it."""
        error = None if driver.cancelled() else driver.exception()
        if error is None and not driver.cancelled():
            return  # it ran out of work; whoever asked since has started another
        rows, self.waiting = [*self.waiting, *self.seats.active], []
        for row in rows:
            if row.answered.done():
                continue
            if error is None:
                row.answered.cancel()
            else:
                row.answered.set_exception(error)
        for row in list(self.seats.active):
            self.seats.leave(row)
        self.clear()

    def _admit(self) -> None:
        """Let waiting requests in: at once those that have been read, the others as soon as enough of them fit."""
        self.waiting = [row for row in self.waiting if not row.answered.done()]
        ready = [row for row in self.waiting if row.slot >= 0][: self.rows - self.seats.speaking]
        for row in ready:
            self.seats.join(row)
        unread = [row for row in self.waiting if row.slot < 0]
        entering = self.seats.room_for(unread[: self.rows - self.seats.speaking])
        if self.seats.speaking and len(entering) < min(self.steps.together, self.few, len(unread)):
            entering = []  # more of them will fit soon
        self._read(entering, ahead=False)
        gone = {*ready, *entering}
        self.waiting = [row for row in self.waiting if row not in gone]  # not before: who is nowhere waits for ever

    @torch.inference_mode(False)  # steps are taken in it, and a cache that grows in it could not be changed outside
    def _read_ahead(self) -> None:
        """While others speak, read prompts of some that wait: then these need only join."""
        unread = [row for row in self.waiting if row.slot < 0]
        ready = len(self.waiting) - len(unread)
        next_ones = self.seats.room_for(unread[: max(0, self.few - ready)])
        if len(next_ones) >= min(self.steps.together, self.few, len(unread)):
            self._read(next_ones, ahead=True)

    # Forwards

    def _read(self, rows: list[Row], ahead: bool) -> None:
        """Seat rows and compute their prompts, all but the last token."""
        if not rows:
            return
        later = self.seats.enter(rows, ahead)
        behind = {row for row, _, _ in later}
        self._prefill([row for row in rows if row not in behind])
        while later:
            ready = [(row, source, shared) for row, source, shared in later if source.computed >= shared]
            for row, source, shared in ready:
                self.cache.copy(source.slot, row.slot, shared)
                row.computed = shared
            self._prefill([row for row, _, _ in ready])
            later = [entry for entry in later if entry not in ready]

    def _prefill(self, rows: list[Row]) -> None:
        todo = [row for row in rows if row.computed < row.length - 1]
        while todo:
            wave: list[Row] = []
            tokens = 0
            for row in todo:
                count = min(row.length - 1 - row.computed, self.steps.chunk)
                if wave and tokens + count > self.steps.chunk:
                    break
                wave.append(row)
                tokens += count
            self._compute(wave)
            todo = [row for row in todo if row.computed < row.length - 1]

    def _compute(self, wave: list[Row]) -> None:
        wave = sorted(wave, key=lambda row: row.adapter or "")
        counts = [min(row.length - 1 - row.computed, self.steps.chunk) for row in wave]
        self.steps.read(wave, counts)
        for row, count in zip(wave, counts, strict=True):
            row.computed += count

    def _step(self) -> bool:
        """One token or some for every speaking row; says whether any of them finished."""
        rows = list(self.seats.active)
        for row, (ids, logprobs) in zip(rows, self.steps.advance(rows, self._read_ahead), strict=True):
            self._say(row, ids, logprobs)
        finished = [row for row in rows if row.stop is not None]
        for row in finished:
            self.seats.leave(row)
            if row.stop is not None and not row.answered.done():
                said = tuple(row.ids[row.prompt : row.length].tolist())
                row.answered.set_result(Sample(said, tuple(row.logprobs), row.stop, row.version))
        return bool(finished)

    def _say(self, row: Row, ids: Sequence[int], logprobs: Sequence[float]) -> None:
        """Write down what a row said, up to where it stops."""
        met = next((i for i, token in enumerate(ids) if row.stops.feed(token)), None) if row.stops is not None else None
        ids = ids if met is None else ids[: met + 1]
        end = row.length + len(ids)
        row.ids[row.length : end] = ids
        row.logprobs += logprobs[: len(ids)]
        row.length, row.computed = end, end - 1
        if ids[-1] in self.base.chat.end_ids:
            row.stop = "end"
        elif met is not None:
            row.stop = "stop"
        elif row.length == len(row.ids):
            row.stop = "length"


def steps(base: Base, cache: SlotCache, sampler: Sampler, adapters: Sequence[str]) -> Steps:
    """The fastest way to take steps that this model and this machine allow."""
    if base.device.type == "cuda":
        from coterie.engines.native import cuda_graphs  # needs Triton, which only CUDA builds of PyTorch bring

        if cuda_graphs.drives(base):
            return cuda_graphs.Graphs(base, cache, sampler, adapters)
        print(f"{base.folder}: steps of this model cannot be captured; sampling takes far longer", file=sys.stderr)
    return Eager(base, cache, sampler)
