"""The native engine (the default): continuous batching in this process, on the learner's own weights.

Requests enter and leave between decode steps, without padding. Requests that continue a cached conversation are
scheduled before new ones, while their keys and values are still in the cache. Prefill computes a prompt up to its last
token, and that token is the input of the row's first decode step, so that all log-probs come from decode steps. Where
steps run asynchronously on a GPU, the prompts of waiting requests are prefilled behind them, ahead of their admission.
"""

from __future__ import annotations

import asyncio
import itertools
import sys
from bisect import insort
from collections.abc import Sequence

import numpy as np
import torch

from coterie.engines.native.decode import Decoder, EagerDecoder
from coterie.engines.native.kv_cache import KVCache
from coterie.engines.native.slots import Row, SlotScheduler
from coterie.engines.requests import loop_failed, reply_room
from coterie.kernels.sampling import Sampler
from coterie.models.base import Base
from coterie.models.chat import StopText
from coterie.types import OnTokens, Sample, Sampling, Weights
from coterie.watchdog import watchdog_paused

OVERTAKEN = 1024  # places that a request moves up in the queue if it continues a cached conversation
SETTLE = 8  # event loop iterations after a reply, so that its workflow can send the next request


class NativeEngine:
    """Continuous batching for all policies on one base."""

    def __init__(self, base: Base, policies: dict[str, str | None], rows: int = 64, context: int | None = None) -> None:
        """`policies`: the adapter of each policy; None is the base model itself. `rows`: rows that run at once."""
        assert base.kv_shape is not None, f"{base.folder}: only the hf engine can drive this model"
        dtype = next(base.model.parameters()).dtype
        self.base, self.policies, self.rows = base, dict(policies), rows
        self.ahead = max(1, rows // 4)  # rows to prefill before their admission
        self.context = min(context or base.context, base.context)
        cache = KVCache(*base.kv_shape, dtype, base.device)
        self.cache = cache
        self.sampler = Sampler(base.vocab_size, base.device)
        adapters = list(dict.fromkeys(name for name in policies.values() if name is not None))
        self.decoder = make_decoder(base, cache, self.sampler, adapters)
        self.slots = SlotScheduler(cache, limit=2 * rows, compact=self.decoder.compact)
        self.versions = dict.fromkeys(policies, 0)
        self.waiting: list[Row] = []  # sorted by `place`
        self.arrivals = itertools.count()
        self.driver: asyncio.Task[None] | None = None

    def weights_changed(self, policy: str, version: int, weights: Weights | None = None) -> None:
        """The weights have changed in place: evict what the old ones computed; waiting requests use the new ones."""
        self.base.load_weights(self.policies[policy], weights)
        adapter, before = self.policies[policy], self.versions[policy]
        self.versions[policy] = version
        self.slots.invalidate(adapter)
        for row in self.waiting:
            if row.adapter == adapter:
                row.version = version
        self.decoder.weights_changed()
        if version > before:
            self.cache.weights_updated()

    def clear(self) -> None:
        """Free the KV cache."""
        self._finish_cancelled()
        self.slots.clear()

    async def sample(
        self,
        policy: str,
        prompt_ids: Sequence[int],
        seed: int,
        sampling: Sampling,
        on_tokens: OnTokens | None = None,
    ) -> Sample:
        if not (room := reply_room(self.base, self.context, prompt_ids, sampling)):
            return Sample((), (), "length", self.versions[policy])
        ids = np.zeros(len(prompt_ids) + room, dtype=np.int64)
        ids[: len(prompt_ids)] = prompt_ids
        stop_text = StopText(self.base.tokenizer, sampling.stop) if sampling.stop else None
        future: asyncio.Future[Sample] = asyncio.get_running_loop().create_future()
        adapter, version, length = self.policies[policy], self.versions[policy], len(prompt_ids)
        row = Row(adapter, version, seed, sampling, ids, length, future, stop_text, length, on_tokens)
        row.place = next(self.arrivals) - (OVERTAKEN if self.slots.is_cached_conversation(row) else 0)
        insort(self.waiting, row, key=lambda row: row.place)
        if self.driver is None or self.driver.done():
            self.driver = asyncio.create_task(self._drive())
            self.driver.add_done_callback(self._driver_done)
        return await future

    async def _drive(self) -> None:
        """The engine loop: admit waiting requests and decode, until no request is left."""
        finished = True
        while self.waiting or self.slots.running:
            for _ in range(SETTLE if finished else 1):
                await asyncio.sleep(0)
            with watchdog_paused():
                self._finish_cancelled()
                self._admit()
                finished = not self.slots.running or self._decode()

    def _finish_cancelled(self) -> None:
        for row in [*self.slots.running, *self.waiting]:
            if row.future.done() and row.slot >= 0:
                self.slots.finish(row)

    def _driver_done(self, driver: asyncio.Task[None]) -> None:
        if loop_failed(driver, [row.future for row in (*self.waiting, *self.slots.running)]):
            self.waiting = []
            for row in list(self.slots.running):
                self.slots.finish(row)
            self.clear()

    def _admit(self) -> None:
        """Run waiting requests: those prefilled ahead at once, the others as soon as enough of them fit."""
        self.waiting = [row for row in self.waiting if not row.future.done()]
        ready = [row for row in self.waiting if row.slot >= 0][: self.rows - len(self.slots.running)]
        for row in ready:
            self.slots.run(row)
        new = [row for row in self.waiting if row.slot < 0]
        admitted = self.slots.admissible(new[: self.rows - len(self.slots.running)])
        if self.slots.running and len(admitted) < min(self.decoder.admit_together, self.ahead, len(new)):
            admitted = []  # wait until more of them fit, and prefill them together
        self._start(admitted, ahead=False)
        # Dequeue only after admission; otherwise a failure would lose the requests.
        dequeued = {*ready, *admitted}
        self.waiting = [row for row in self.waiting if row not in dequeued]

    @torch.inference_mode(False)  # called inside inference mode, whose new tensors cannot be changed in place outside
    def _prefill_ahead(self) -> None:
        """While decode steps run, prefill prompts of some waiting requests, which can then decode at once."""
        new = [row for row in self.waiting if row.slot < 0]
        ready = len(self.waiting) - len(new)
        following = self.slots.admissible(new[: max(0, self.ahead - ready)])
        if len(following) >= min(self.decoder.admit_together, self.ahead, len(new)):
            self._start(following, ahead=True)

    # Forwards

    def _start(self, rows: list[Row], ahead: bool) -> None:
        """Give rows their slots and prefill their prompts, all but the last token."""
        if not rows:
            return
        later = self.slots.admit(rows, ahead)
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
        """Chunked prefill: forwards of at most `prefill_tokens` tokens."""
        todo = [row for row in rows if row.computed < row.length - 1]
        while todo:
            chunk: list[Row] = []
            tokens = 0
            for row in todo:
                count = min(row.length - 1 - row.computed, self.decoder.prefill_tokens)
                if chunk and tokens + count > self.decoder.prefill_tokens:
                    break
                chunk.append(row)
                tokens += count
            self._prefill_chunk(chunk)
            todo = [row for row in todo if row.computed < row.length - 1]

    def _prefill_chunk(self, rows: list[Row]) -> None:
        rows = sorted(rows, key=lambda row: row.adapter or "")
        counts = [min(row.length - 1 - row.computed, self.decoder.prefill_tokens) for row in rows]
        self.decoder.prefill(rows, counts)
        for row, count in zip(rows, counts, strict=True):
            row.computed += count

    def _decode(self) -> bool:
        """One or several tokens for every running row; True if any of them finished."""
        rows = list(self.slots.running)
        for row, (ids, logprobs) in zip(rows, self.decoder.decode(rows, self._prefill_ahead), strict=True):
            self._append(row, ids, logprobs)
        finished = [row for row in rows if row.stop is not None]
        for row in finished:
            self.slots.finish(row)
            if row.stop is not None and not row.future.done():
                ids = tuple(row.ids[row.prompt : row.length].tolist())
                row.future.set_result(Sample(ids, tuple(row.logprobs), row.stop, row.version))
        return bool(finished)

    def _append(self, row: Row, ids: Sequence[int], logprobs: Sequence[float]) -> None:
        """Append sampled tokens to a row, up to a stop string, and set its stop reason."""
        stops = row.stop_text
        met = next((i for i, token in enumerate(ids) if stops.feed(token)), None) if stops is not None else None
        ids = ids if met is None else ids[: met + 1]
        end = row.length + len(ids)
        row.ids[row.length : end] = ids
        row.logprobs += logprobs[: len(ids)]
        row.length, row.computed = end, end - 1
        if row.on_tokens is not None and not row.future.done():
            row.on_tokens(ids, logprobs[: len(ids)])
        if ids[-1] in self.base.chat.end_ids:
            row.stop = "end"
        elif met is not None:
            row.stop = "stop"
        elif row.length == len(row.ids):
            row.stop = "length"


def make_decoder(base: Base, cache: KVCache, sampler: Sampler, adapters: Sequence[str]) -> Decoder:
    """CUDA graphs where the model and the device support them, else the eager decoder."""
    if base.device.type == "cuda":
        from coterie.engines.native import cuda_graphs  # needs Triton, which only CUDA builds of PyTorch bring

        if cuda_graphs.is_supported(base):
            return cuda_graphs.CudaGraphDecoder(base, cache, sampler, adapters)
        print(f"{base.folder}: no CUDA graphs for this model; sampling will be much slower", file=sys.stderr)
    return EagerDecoder(base, cache, sampler)
