"""Decode steps as CUDA graphs: captured once per batch size, replayed 16 tokens per host sync.

`FusedForward` is the step's forward for Llama-shaped models, one kernel launch between two GEMMs. A row's token,
position, sampling options and RNG keys are in the decode state, a tensor on the device that each step advances; a row
that has sampled its last token becomes idle by itself. Learners change weights in place, so the graphs stay valid.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from coterie.engines.native.decode import EagerDecoder, Tokens, prompt_tokens, segments
from coterie.engines.native.kv_cache import FlashPrefillLayout, KVCache, pinned
from coterie.engines.native.slots import Row
from coterie.kernels import sampling_triton, top_p_top_k_triton
from coterie.kernels.decode_attention import HeadShape, decode_attention, rope_and_store_kv
from coterie.kernels.decode_ops import add_rms_norm
from coterie.kernels.sampling import Sampler, rng_keys
from coterie.models.base import Base
from coterie.models.forward import Forward
from coterie.models.lora_decode import Epilogue, StackedLora, refresh
from coterie.models.lora_routing import Segment

STEPS_PER_SYNC = 16
# Columns of the decode state.
TOKEN, POSITION, START, LIMIT, TEMPERATURE, TOP_P, TOP_K, ADAPTER, SLOT, RNG_KEYS = range(10)
MIN_ROWS = 8  # of a graph

Projections = tuple[StackedLora, StackedLora, StackedLora, StackedLora]  # QKV, out, gate and up, down
Attention = Callable[[int, Tensor, HeadShape], Tensor | None]  # layer, its QKV, heads → attention output
Projection = Callable[[StackedLora, Tensor, Epilogue], Tensor]


def is_supported(base: Base) -> bool:
    """True for a model with our own forward, on CUDA, with SiLU and a head dimension that is a power of two."""
    if base.forward is None or base.kv_shape is None or base.device.type != "cuda":
        return False
    head_dim, rotary = base.kv_shape.head_dim, base.forward.rotary
    usual = head_dim >= 16 and head_dim & (head_dim - 1) == 0 and base.model.config.hidden_act == "silu"
    return usual and rotary.rope_type != "dynamic"  # dynamic RoPE reads the positions on the host


class FusedForward:
    """Embedding, blocks and final norm, with per-row LoRA."""

    def __init__(self, forward: Forward, cache: KVCache, adapters: Sequence[str]) -> None:
        self.forward, self.cache, self.adapters = forward, cache, adapters
        self.stale = True  # adapters have changed since they were copied
        self.rope: tuple[Tensor, Tensor] | None = None

    @cached_property
    def projections(self) -> list[Projections]:
        """Built at the first forward, when all adapters are attached."""
        return [
            (
                StackedLora(block.qkv, self.adapters), StackedLora(block.out, self.adapters),
                StackedLora(block.gate_up, self.adapters), StackedLora(block.down, self.adapters),
            )
            for block in self.forward.blocks
        ]  # fmt: skip

    def refresh(self) -> None:
        """Copy changed adapters into the stacked weights."""
        if self.stale:
            refresh([layer for block in self.projections for layer in block])
            self.stale = False

    def decode(self, tokens: Tensor, decode_state: Tensor, slots: Tensor, adapters: Tensor | None) -> Tensor:
        """One token for each row of the decode state, in its slot and at its position."""
        rope = self.rope_tables()

        def attend(i: int, qkv: Tensor, heads: HeadShape) -> Tensor:
            block = self.forward.blocks[i]
            scale, window = block.attention
            cache = self.cache.layers[i]
            return decode_attention(qkv, rope, cache, decode_state, slots, heads, scale, window, block.qk_norms)

        if adapters is None:
            return self._run(tokens, attend, StackedLora.without_lora)
        return self._run(tokens, attend, lambda layer, x, epilogue: layer.per_row(x, adapters, epilogue))

    def prefill(self, tokens: Tensor, layout: FlashPrefillLayout, segments: Sequence[Segment]) -> None:
        """Several tokens for some slots; only their keys and values are computed."""
        rope, last = self.rope_tables(), len(self.forward.blocks) - 1

        def attend(i: int, qkv: Tensor, heads: HeadShape) -> Tensor | None:
            block = self.forward.blocks[i]
            scale, window = block.attention
            cache = self.cache.layers[i]
            q, k, v = rope_and_store_kv(qkv, rope, cache, layout.slots, layout.positions, heads, block.qk_norms)
            return None if i == last else layout.attend(cache, q, k, v, scale, window).flatten(1)

        self._run(tokens, attend, lambda layer, x, epilogue: layer.per_segment(x, segments, epilogue))

    def _run(self, tokens: Tensor, attend: Attention, project: Projection) -> Tensor:
        x, y, head_dim = self.forward.embed(tokens).float(), None, self.forward.head_dim
        for i, (block, (qkv, out, gate_up, down)) in enumerate(zip(self.forward.blocks, self.projections, strict=True)):
            queries, keys, _ = (size // head_dim for size in block.qkv.sizes)
            projected = project(qkv, add_rms_norm(x, y, block.input_norm), None)
            attended = attend(i, projected, HeadShape(queries, keys, head_dim))
            if attended is None:  # prefill needs no more than the last keys and values
                return x
            y = project(out, attended, "residual")
            y = project(down, project(gate_up, add_rms_norm(x, y, block.mlp_norm), "swiglu"), "residual")
        return add_rms_norm(x, y, self.forward.norm)

    def rope_tables(self) -> tuple[Tensor, Tensor]:
        """Cosine and sine of every position of a slot, in fp32: [capacity, head_dim]."""
        if self.rope is None or len(self.rope[0]) < self.cache.capacity:
            positions = torch.arange(self.cache.capacity, device=self.cache.device)
            cos, sin = self.forward.rotary(self.forward.norm.weight.float(), positions[None])
            self.rope = cos[0].contiguous(), sin[0].contiguous()
        return self.rope


class CudaGraphDecoder:
    """Captured decode steps, one graph per number of rows; they share one memory pool."""

    prefill_tokens = 16384
    admit_together = 4  # a prefill has the same launch overhead for one prompt as for many
    compact = False  # rows may be in any slots: the decode state has each row's

    def __init__(self, base: Base, cache: KVCache, sampler: Sampler, adapters: Sequence[str]) -> None:
        assert base.forward is not None
        self.base, self.cache, self.sampler, self.adapters = base, cache, sampler, list(adapters)
        self.fused = FusedForward(base.forward, cache, self.adapters)
        self.eager = EagerDecoder(base, cache, sampler)
        self.pool: Any = None
        self.graphs: dict[tuple[int, bool, bool], Callable[[], None]] = {}
        self.captured_on: tuple[int, torch.Size, int] | None = None  # address and shape of the cache, address of RoPE
        ends = sorted(base.chat.end_ids)
        padded = 1 << (len(ends) - 1).bit_length()
        self.end_ids = torch.tensor(ends + ends[:1] * (padded - len(ends)), dtype=torch.int32, device=base.device)
        self.decode_state = torch.zeros(0, RNG_KEYS + STEPS_PER_SYNC, dtype=torch.int32, device=base.device)
        self.outputs = torch.zeros(0, 2 * STEPS_PER_SYNC, dtype=torch.int32, device=base.device)

    def weights_changed(self) -> None:
        """The stacked copies of the adapters are stale."""
        self.fused.stale = True

    @torch.inference_mode()
    def prefill(self, rows: Sequence[Row], counts: Sequence[int]) -> None:
        if self.cache.layers[0].dtype == torch.float32:  # flash attention needs half precision
            self.eager.prefill(rows, counts)
            return
        with self.base.on_device():
            self._prefill(rows, counts)

    def _prefill(self, rows: Sequence[Row], counts: Sequence[int]) -> None:
        self.fused.refresh()
        slots, starts = [row.slot for row in rows], [row.computed for row in rows]
        layout = FlashPrefillLayout(self.cache, slots, starts, counts, prompt_tokens(rows, counts))
        self.fused.prefill(layout.tokens, layout, segments([row.adapter for row in rows], counts))

    @torch.inference_mode()
    def decode(self, rows: Sequence[Row], meanwhile: Callable[[], None]) -> list[Tokens]:
        """Up to STEPS_PER_SYNC tokens for each row; a row that finishes gets fewer."""
        ordered = sorted(rows, key=self._adapter_number)  # the per-row LoRA kernel is fastest on adjacent rows
        with self.base.on_device():
            self._launch(ordered)
            outputs = self.outputs[: len(rows)].to("cpu", non_blocking=True)  # PyTorch pins the target
            arrived = torch.cuda.current_stream().record_event() if self.outputs.is_cuda else None
            meanwhile()
            if arrived is not None:
                arrived.synchronize()
            by_slot = {row.slot: one for row, one in zip(ordered, parse_outputs(outputs.numpy()), strict=True)}
            return [by_slot[row.slot] for row in rows]

    def _launch(self, rows: Sequence[Row]) -> None:
        size = graph_size(len(rows))
        self._invalidate_stale_graphs(size)
        self.fused.refresh()
        step = self._graph(size, any(row.adapter for row in rows), any(row.truncates for row in rows))
        self.decode_state[:size].copy_(pinned(self._state(rows, size), self.base.device), non_blocking=True)
        self.outputs[:size].fill_(-1)
        for _ in range(min(STEPS_PER_SYNC, max(len(row.ids) - row.length for row in rows))):
            step()

    def _state(self, rows: Sequence[Row], size: int) -> np.ndarray:
        """The decode state before the next steps; the rows that pad the graph are idle."""
        state = np.zeros((size, RNG_KEYS + STEPS_PER_SYNC), dtype=np.int32)
        state[:, POSITION] = -1
        floats, here = state.view(np.float32), slice(0, len(rows))
        state[here, TOKEN] = [row.ids[row.length - 1] for row in rows]
        state[here, POSITION] = state[here, START] = [row.length - 1 for row in rows]
        state[here, LIMIT] = [len(row.ids) for row in rows]
        floats[:, TOP_P] = 1
        floats[here, TEMPERATURE] = [row.sampling.temperature for row in rows]
        floats[here, TOP_P] = [row.sampling.top_p for row in rows]
        state[here, TOP_K] = [row.sampling.top_k for row in rows]
        state[here, ADAPTER] = [self._adapter_number(row) for row in rows]
        state[here, SLOT] = [row.slot for row in rows]
        seeds, firsts = [row.seed for row in rows], [row.length - row.prompt for row in rows]
        state[here, RNG_KEYS:] = rng_keys(seeds, firsts, STEPS_PER_SYNC)
        return state

    def _adapter_number(self, row: Row) -> int:
        return self.adapters.index(row.adapter) if row.adapter else -1

    def _invalidate_stale_graphs(self, size: int) -> None:
        """Graphs hold addresses and shapes: drop them when the cache, the RoPE tables or the decode state move."""
        if len(self.decode_state) < size:
            self.decode_state = self.decode_state.new_zeros(size, RNG_KEYS + STEPS_PER_SYNC)
            self.outputs = self.outputs.new_zeros(size, 2 * STEPS_PER_SYNC)
            self.captured_on = None
        layer, rope = self.cache.layers[0], self.fused.rope_tables()[0]
        here = layer.data_ptr(), layer.shape, rope.data_ptr()
        if self.captured_on != here:
            self.graphs.clear()
            self.pool = torch.cuda.graph_pool_handle() if self.base.device.type == "cuda" else None
            self.captured_on = here

    def _graph(self, size: int, lora: bool, truncates: bool) -> Callable[[], None]:
        key = (size, lora, truncates)
        if key not in self.graphs:
            self.decode_state[:, POSITION] = -1  # all rows are idle during the capture
            self.graphs[key] = capture(lambda: self._step(*key), self.pool)
        return self.graphs[key]

    def _step(self, size: int, lora: bool, truncates: bool) -> None:
        """One token for each of the first `size` rows of the decode state."""
        state = self.decode_state[:size]
        adapters = state[:, ADAPTER] if lora else None
        hidden = self.fused.decode(state[:, TOKEN], state, state[:, SLOT], adapters)
        logits = self.base.logits(hidden)
        if truncates:
            top_p_top_k_triton.top_k_top_p(logits, state, TOP_P, TOP_K, TEMPERATURE)
        sampling_triton.sample(logits, self.sampler, state, self.end_ids, self.outputs[:size], TEMPERATURE, RNG_KEYS)


def graph_size(rows: int) -> int:
    """The smallest graph with room for so many rows: 8, 16, 24, 32, 48, 64, 96, 128, 192 and so on."""
    power = max(MIN_ROWS, 1 << (rows - 1).bit_length())
    less = power * 3 // 4
    return less if rows <= less and less >= 3 * MIN_ROWS else power


def capture(step: Callable[[], None], pool: Any) -> Callable[[], None]:
    """Run a step once to compile its kernels, then capture it as a CUDA graph; returns the replay."""
    aside = torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        step()
    torch.cuda.current_stream().wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    # Thread-local: a verifier's thread may allocate memory meanwhile, which a global capture forbids.
    with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
        step()
    return graph.replay


def parse_outputs(outputs: np.ndarray) -> list[Tokens]:
    """Ids and log-probs of each row, as many as were sampled: [R, 2·STEPS_PER_SYNC] → [R]."""
    counts = (outputs[:, :STEPS_PER_SYNC] >= 0).sum(axis=1)
    logprobs = outputs[:, STEPS_PER_SYNC:].view(np.float32)
    return [(outputs[i, :n].tolist(), logprobs[i, :n].tolist()) for i, n in enumerate(counts)]
