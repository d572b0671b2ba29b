"""The default engine: samples in this process, on the learner's own weights.

Requests enter and leave between steps; no row pads another. A prompt is computed up to its last
token, and that token is the row's first step: all log-probs come out of steps.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import numpy as np
import torch

from coterie.chat import StopText
from coterie.engines.native.cache import Decode, Prefill, SlotCache
from coterie.engines.native.sampler import Sampler, draw_key, keep_likely
from coterie.engines.native.seats import Row, Seats
from coterie.models.base import Base
from coterie.models.routing import Segment
from coterie.types import Sample, Sampling

PREFILL = 2048  # tokens computed in one forward before decoding goes on
SETTLE = 8  # turns of the event loop in which a workflow that was answered may ask again


class NativeEngine:
    """Continuous batching for all policies that live on one base."""

    def __init__(self, base: Base, policies: dict[str, str | None], rows: int = 64, context: int | None = None) -> None:
        """`policies` names the adapter each policy speaks with; None is the base itself."""
        assert base.kept is not None, f"{base.folder}: only the hf engine can drive this model"
        dtype = next(base.model.parameters()).dtype
        self.base, self.policies, self.rows = base, dict(policies), rows
        self.context = min(context or base.context, base.context)
        cache = SlotCache(*base.kept, dtype, base.device)
        self.cache = cache
        self.sampler = Sampler(base.vocabulary, base.device)
        self.seats = Seats(cache, limit=2 * rows)
        self.versions = dict.fromkeys(policies, 0)
        self.waiting: list[Row] = []
        self.driver: asyncio.Task[None] | None = None

    def load(self, policy: str, version: int) -> None:
        """The weights moved in place; rows computed with the old ones are of no use."""
        self.versions[policy] = version
        self.seats.forget(self.policies[policy])

    def clear(self) -> None:
        """Give the cache's memory back."""
        self.seats.clear()

    async def sample(self, policy: str, prompt_ids: Sequence[int], seed: int, sampling: Sampling) -> Sample:
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
            for row in self.seats.active():
                if row.answered.done():  # cancelled: nobody waits for it any more
                    self.seats.leave(row)
            self._admit()
            finished = not self.seats.speaking or self._step()

    def _stopped(self, driver: asyncio.Task[None]) -> None:
        """If the driver failed, so did every request that waits on it."""
        error = None if driver.cancelled() else driver.exception()
        if error is None and not driver.cancelled():
            return  # it ran out of work; whoever asked since has started another
        rows, self.waiting = self.waiting + self.seats.active(), []
        self.clear()
        for row in rows:
            if row.answered.done():
                continue
            if error is None:
                row.answered.cancel()
            else:
                row.answered.set_exception(error)

    def _admit(self) -> None:
        """Let waiting requests in and compute their prompts, all but the last token."""
        self.waiting = [row for row in self.waiting if not row.answered.done()]
        room = self.rows - self.seats.speaking
        entering = self.waiting[:room]
        if not entering:
            return
        later = self.seats.enter(entering)
        self.waiting = self.waiting[room:]  # not before they sit: who is in neither place would wait for ever
        behind = {row for row, _, _ in later}
        self._prefill([row for row in entering if row not in behind])
        while later:
            ready = [(row, source, shared) for row, source, shared in later if source.computed >= shared]
            for row, source, shared in ready:
                self.cache.copy(source.slot, row.slot, shared)
                row.computed = shared
            self._prefill([row for row, _, _ in ready])
            later = [entry for entry in later if entry not in ready]

    # Forwards

    @torch.inference_mode()
    def _prefill(self, rows: list[Row]) -> None:
        todo = [row for row in rows if row.computed < row.length - 1]
        while todo:
            wave: list[Row] = []
            tokens = 0
            for row in todo:
                count = min(row.length - 1 - row.computed, PREFILL)
                if wave and tokens + count > PREFILL:
                    break
                wave.append(row)
                tokens += count
            self._compute(wave)
            todo = [row for row in todo if row.computed < row.length - 1]

    def _compute(self, wave: list[Row]) -> None:
        wave = sorted(wave, key=lambda row: row.adapter or "")
        ends = [min(row.length - 1, row.computed + PREFILL) for row in wave]
        counts = [end - row.computed for row, end in zip(wave, ends, strict=True)]
        layout = Prefill(self.cache, [row.slot for row in wave], [row.computed for row in wave], counts)
        ids = np.concatenate([row.ids[row.computed : end] for row, end in zip(wave, ends, strict=True)])
        tokens = torch.from_numpy(ids).to(self.base.device)
        self.base.sampled(tokens, layout.positions, layout, segments([row.adapter for row in wave], counts))
        for row, end in zip(wave, ends, strict=True):
            row.computed = end

    @torch.inference_mode()
    def _step(self) -> bool:
        """One token for every speaking row; says whether any of them finished."""
        rows = sorted(self.seats.active(), key=lambda row: row.adapter or "")
        layout = Decode(self.cache, [row.slot for row in rows], [row.length - 1 for row in rows])
        tokens = torch.tensor([row.ids[row.length - 1] for row in rows], device=self.base.device)
        runs = segments([row.adapter for row in rows], [1] * len(rows))
        hidden = self.base.sampled(tokens, layout.positions, layout, runs)
        ids, logprobs = self._draw(rows, self.base.logits(hidden))
        for row, token, logprob in zip(rows, ids, logprobs, strict=True):
            self._say(row, token, logprob)
        finished = [row for row in rows if row.stop is not None]
        for row in finished:
            self.seats.leave(row)
            if row.stop is not None and not row.answered.done():
                said = tuple(row.ids[row.prompt : row.length].tolist())
                row.answered.set_result(Sample(said, tuple(row.logprobs), row.stop, row.version))
        return bool(finished)

    def _draw(self, rows: list[Row], logits: torch.Tensor) -> tuple[list[int], list[float]]:
        device = logits.device
        temperature = torch.tensor([row.sampling.temperature for row in rows], device=device)
        narrow = [i for i, row in enumerate(rows) if row.sampling.top_p < 1 or row.sampling.top_k]
        if narrow:
            picked = [rows[i].sampling for i in narrow]
            top_p = torch.tensor([s.top_p for s in picked], device=device)
            top_k = torch.tensor([s.top_k for s in picked], device=device)
            logits[narrow] = keep_likely(logits[narrow], top_p, top_k, temperature[narrow])
        keys = torch.tensor(
            [draw_key(row.seed, row.length - row.prompt) for row in rows], dtype=torch.int32, device=device
        )
        ids, logprobs = self.sampler(logits, temperature, keys)
        return ids.tolist(), logprobs.tolist()

    def _say(self, row: Row, token: int, logprob: float) -> None:
        row.computed = row.length
        row.ids[row.length] = token
        row.length += 1
        row.logprobs.append(logprob)
        if token in self.base.chat.end_ids:
            row.stop = "end"
        elif row.stops is not None and row.stops.feed(token):
            row.stop = "stop"
        elif row.length == len(row.ids):
            row.stop = "length"


def segments(adapters: Sequence[str | None], counts: Sequence[int]) -> list[Segment]:
    """Runs of one adapter: (a, a, b), (1, 2, 1) → (0, 3, a), (3, 4, b)."""
    runs: list[Segment] = []
    at = 0
    for adapter, count in zip(adapters, counts, strict=True):
        start = runs.pop()[0] if runs and runs[-1][2] == adapter else at
        at += count
        runs.append((start, at, adapter))
    return runs
