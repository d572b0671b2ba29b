"""Steps on CUDA: captured once as a graph, run many times, several tokens between two words with the host.

All that a step needs to know of a row stands in a sheet on the device, and the step itself moves it on: a row that has
said its last token puts itself to rest. The learner's weights move in place, so the graphs stay true.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from coterie.engines.native.decode import Eager, Said, segments, stream
from coterie.engines.native.fused_forward import Fused
from coterie.engines.native.kv_cache import Flash, SlotCache, pinned
from coterie.engines.native.slots import Row
from coterie.kernels import decode_attention, top_p_top_k_triton
from coterie.kernels.sampling import Sampler, draw_keys
from coterie.models.base import Base

EVERY = 16  # steps between two looks at what was said
TOKEN, POSITION, START, LIMIT, HEAT, TOP_P, TOP_K, ADAPTER, SLOT, KEYS = range(10)  # columns of the sheet
SMALLEST = 8  # rows of a graph


def drives(base: Base) -> bool:
    """Whether our kernels can: a model with a forward of our own, on CUDA, of a usual shape."""
    if base.forward is None or base.kept is None or base.device.type != "cuda":
        return False
    width, rotary = base.kept.width, base.forward.rotary
    usual = width >= 16 and width & (width - 1) == 0 and base.model.config.hidden_act == "silu"
    return usual and rotary.rope_type != "dynamic"  # it looks at the positions on the host


class Graphs:
    """Captured steps, one for each number of rows; they share one memory."""

    chunk = 16384
    together = 4  # to read one prompt takes the host as long as to read many
    gathered = False  # the sheet says where a row sits

    def __init__(self, base: Base, cache: SlotCache, sampler: Sampler, adapters: Sequence[str]) -> None:
        assert base.forward is not None
        self.base, self.cache, self.sampler, self.adapters = base, cache, sampler, list(adapters)
        self.fused = Fused(base.forward, cache, self.adapters)
        self.eager = Eager(base, cache, sampler)
        self.pool: Any = None
        self.captured: dict[tuple[int, bool, bool], Callable[[], None]] = {}
        self.built_on: tuple[int, torch.Size, int] | None = None  # where the cache was and how large; where the turns
        ends = sorted(base.chat.end_ids)
        most = 1 << (len(ends) - 1).bit_length()
        self.ends = torch.tensor(ends + ends[:1] * (most - len(ends)), dtype=torch.int32, device=base.device)
        self.sheet = torch.zeros(0, KEYS + EVERY, dtype=torch.int32, device=base.device)
        self.said = torch.zeros(0, 2 * EVERY, dtype=torch.int32, device=base.device)

    def moved(self) -> None:
        """The adapters' weights are not what they were."""
        self.fused.stale = True

    @torch.inference_mode()
    def read(self, rows: Sequence[Row], counts: Sequence[int]) -> None:
        if self.cache.layers[0].dtype == torch.float32:  # flash attention knows only half precision
            self.eager.read(rows, counts)
            return
        with self.base.on_device():
            self._read(rows, counts)

    def _read(self, rows: Sequence[Row], counts: Sequence[int]) -> None:
        self.fused.refresh()
        slots, starts = [row.slot for row in rows], [row.computed for row in rows]
        layout = Flash(self.cache, slots, starts, counts, stream(rows, counts))
        self.fused.read(layout.tokens, layout, segments([row.adapter for row in rows], counts))

    @torch.inference_mode()
    def advance(self, rows: Sequence[Row], meanwhile: Callable[[], None]) -> list[Said]:
        """Up to EVERY tokens for each row, fewer for one that has finished."""
        together = sorted(rows, key=self._number)  # so that what adds an adapter to its rows looks at few others
        with self.base.on_device():
            self._launch(together)
            said = self.said[: len(rows)].to("cpu", non_blocking=True)  # PyTorch pins what it copies to in this way
            arrived = torch.cuda.current_stream().record_event() if self.said.is_cuda else None
            meanwhile()
            if arrived is not None:
                arrived.synchronize()
            found = {row.slot: one for row, one in zip(together, read(said.numpy()), strict=True)}
            return [found[row.slot] for row in rows]

    def _launch(self, rows: Sequence[Row]) -> None:
        size = size_for(len(rows))
        self._make_room(size)
        self.fused.refresh()
        step = self._step(size, any(row.adapter for row in rows), any(row.narrow for row in rows))
        self.sheet[:size].copy_(pinned(self._written(rows, size), self.base.device), non_blocking=True)
        self.said[:size].fill_(-1)
        for _ in range(min(EVERY, max(len(row.ids) - row.length for row in rows))):
            step()

    def _written(self, rows: Sequence[Row], size: int) -> np.ndarray:
        """The sheet as it stands before the next steps; rows that fill up the graph are at rest."""
        sheet = np.zeros((size, KEYS + EVERY), dtype=np.int32)
        sheet[:, POSITION] = -1
        floats, here = sheet.view(np.float32), slice(0, len(rows))
        sheet[here, TOKEN] = [row.ids[row.length - 1] for row in rows]
        sheet[here, POSITION] = sheet[here, START] = [row.length - 1 for row in rows]
        sheet[here, LIMIT] = [len(row.ids) for row in rows]
        floats[:, TOP_P] = 1
        floats[here, HEAT] = [row.sampling.temperature for row in rows]
        floats[here, TOP_P] = [row.sampling.top_p for row in rows]
        sheet[here, TOP_K] = [row.sampling.top_k for row in rows]
        sheet[here, ADAPTER] = [self._number(row) for row in rows]
        sheet[here, SLOT] = [row.slot for row in rows]
        seeds, firsts = [row.seed for row in rows], [row.length - row.prompt for row in rows]
        sheet[here, KEYS:] = draw_keys(seeds, firsts, EVERY)
        return sheet

    def _number(self, row: Row) -> int:
        return self.adapters.index(row.adapter) if row.adapter else -1

    def _make_room(self, size: int) -> None:
        """Graphs know addresses and sizes: when the cache, the turns or the sheet have others, they are of no use."""
        if len(self.sheet) < size:
            self.sheet = self.sheet.new_zeros(size, KEYS + EVERY)
            self.said = self.said.new_zeros(size, 2 * EVERY)
            self.built_on = None
        layer, turns = self.cache.layers[0], self.fused.turns()[0]
        here = layer.data_ptr(), layer.shape, turns.data_ptr()
        if self.built_on != here:
            self.captured.clear()
            self.pool = torch.cuda.graph_pool_handle() if self.base.device.type == "cuda" else None
            self.built_on = here

    def _step(self, size: int, adapted: bool, narrow: bool) -> Callable[[], None]:
        key = (size, adapted, narrow)
        if key not in self.captured:
            self.sheet[:, POSITION] = -1  # everyone rests while we try it
            self.captured[key] = capture(lambda: self._run(*key), self.pool)
        return self.captured[key]

    def _run(self, size: int, adapted: bool, narrow: bool) -> None:
        """One token for each of the first `size` rows of the sheet."""
        sheet = self.sheet[:size]
        who = sheet[:, ADAPTER] if adapted else None
        hidden = self.fused.step(sheet[:, TOKEN], sheet, sheet[:, SLOT], who)
        logits = self.base.logits(hidden)
        if narrow:
            top_p_top_k_triton.narrow(logits, sheet, TOP_P, TOP_K, HEAT)
        decode_attention.draw(logits, self.sampler, sheet, self.ends, self.said[:size], HEAT, KEYS)


def size_for(rows: int) -> int:
    """The smallest graph that has room: 8, 16, 24, 32, 48, 64, 96, 128, 192 rows and so on."""
    power = max(SMALLEST, 1 << (rows - 1).bit_length())
    less = power * 3 // 4
    return less if rows <= less and less >= 3 * SMALLEST else power


def capture(step: Callable[[], None], pool: Any) -> Callable[[], None]:
    """Run a step once, so that its kernels are made, then record it."""
    aside = torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        step()
    torch.cuda.current_stream().wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool):
        step()
    return graph.replay


def read(said: np.ndarray) -> list[Said]:
    """Ids and log-probs of each row, up to its last: [R, 2·EVERY] → [R]."""
    counts = (said[:, :EVERY] >= 0).sum(axis=1)
    logprobs = said[:, EVERY:].view(np.float32)
    return [(said[i, :n].tolist(), logprobs[i, :n].tolist()) for i, n in enumerate(counts)]
