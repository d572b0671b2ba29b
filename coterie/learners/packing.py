"""Sequence packing: cut a batch into padding-free microbatches within a token budget.

Rows that begin with the same tokens share that prefix, so it is computed once per microbatch: a prompt with its
answers, or a tree of conversations that branch at every turn.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import torch
from torch import Tensor
from transformers import PreTrainedConfig

from coterie.config.settings import Learning
from coterie.models.attention import Packed, Span, to_device_async
from coterie.models.base import Base
from coterie.types import Batch

MIN_PREFIX = 8  # tokens; a shorter common prefix costs more than it saves
CPU_BUDGET = 4096  # tokens
MEMORY_SHARE = 1 / 6  # of a GPU's memory for activations: enough for small models to launch few, large kernels
MIN_BUDGET, MAX_BUDGET = 1024, 1 << 16  # tokens


@dataclass
class Microbatch:
    """The packed rows of one forward pass, and where in it each sampled token is predicted."""

    tokens: Tensor  # [S]
    positions: Tensor  # [S]
    layout: Packed
    source: Tensor  # [N] into the microbatch: the position that predicts each sampled token
    index: Tensor  # [N] into the batch: the sampled tokens


def concatenate(microbatches: Sequence[Microbatch]) -> Microbatch:
    """One microbatch after the other, for one forward pass."""
    if len(microbatches) == 1:
        return microbatches[0]
    spans, at = [], 0
    for micro in microbatches:
        spans += [span.after(at) for span in micro.layout.spans]
        at += len(micro.tokens)
    names = ("tokens", "positions", "source", "index")
    tokens, positions, source, index = (torch.cat([getattr(m, name) for m in microbatches]) for name in names)
    return Microbatch(tokens, positions, Packed(spans, tokens.device), source, index)


def filler(device: torch.device) -> Microbatch:
    """A dummy microbatch of one token, without loss: a process with fewer microbatches of a sharded model runs it, as
    all processes must take part in gathering the layers."""
    zero, none = torch.zeros(1, dtype=torch.long, device=device), torch.zeros(0, dtype=torch.long, device=device)
    return Microbatch(zero, zero, Packed([Span(0, 1)], device), none, none)


@dataclass(frozen=True)
class _Row:
    """A row of the batch, and the length of the prefix that it shares with the row before it in the microbatch."""

    number: int
    tokens: Tensor
    shared: int = 0

    @property
    def cost(self) -> int:
        return len(self.tokens) - self.shared


def pack_microbatches(
    batch: Batch,
    budget: int,
    device: torch.device | str = "cpu",
    share: bool = True,
    selected: Tensor | None = None,
) -> Iterator[Microbatch]:
    """Cut a batch by token budget. How it is cut changes no gradient: the loss weights are already fixed.

    `selected`: True for the tokens [T] of the rows to pack; None: all.
    """
    starts = torch.searchsorted(batch.row, torch.arange(batch.rows + 1)).tolist()
    rows = [_Row(r, batch.tokens[a:b]) for r, (a, b) in enumerate(pairwise(starts)) if selected is None or selected[a]]
    micro: list[_Row] = []
    used = 0
    for row in _sorted_rows(rows) if share else rows:
        if micro and used + row.cost > budget:
            yield _pack(batch, micro, starts, device)
            micro, used = [], 0
        row = row if micro else replace(row, shared=0)
        micro.append(row)
        used += row.cost
    if micro:
        yield _pack(batch, micro, starts, device)


def _sorted_rows(rows: Sequence[_Row]) -> Iterator[_Row]:
    """The rows sorted by their tokens. The longest prefix that a row shares with any earlier row, it then shares with
    the row just before it, so each branch of a tree of conversations is computed once."""
    before = None
    for row in sorted(rows, key=lambda row: row.tokens.tolist()):
        common = 0 if before is None else _common_prefix(before.tokens, row.tokens)
        yield replace(row, shared=common if common >= MIN_PREFIX else 0)
        before = row


def _common_prefix(a: Tensor, b: Tensor) -> int:
    """The length of the common prefix, less than the whole of b: a span has at least one token."""
    n = min(len(a), len(b) - 1)
    differs = (a[:n] != b[:n]).nonzero()
    return int(differs[0]) if len(differs) else n


def _pack(batch: Batch, micro: Sequence[_Row], starts: list[int], device: torch.device | str) -> Microbatch:
    tokens, positions, spans, sources, indices = [], [], [], [], []
    at = 0  # the length of the stream so far
    place = torch.arange(0)  # where in the stream the tokens of the row are
    pieces: list[tuple[int, int]] = []  # the same, as starts and lengths
    for row in micro:
        pieces = [*_leading_pieces(pieces, row.shared), (at, row.cost)]
        spans.append(Span(at, row.cost, tuple(pieces[:-1])))
        tokens.append(row.tokens[row.shared :])
        positions.append(torch.arange(row.shared, len(row.tokens)))
        place = torch.cat([place[: row.shared], torch.arange(at, at + row.cost)])
        sampled = batch.mask[starts[row.number] : starts[row.number + 1]].nonzero()[:, 0]
        sources.append(place[sampled - 1])
        indices.append(starts[row.number] + sampled)
        at += row.cost
    parts = (to_device_async(torch.cat(part), device) for part in (tokens, positions, sources, indices))
    token, position, source, index = parts
    return Microbatch(token, position, Packed(spans, device), source, index)


def _leading_pieces(pieces: Sequence[tuple[int, int]], tokens: int) -> Iterator[tuple[int, int]]:
    """The pieces, as (start, length), that hold so many leading tokens of a row."""
    for start, length in pieces:
        if tokens <= 0:
            return
        yield start, min(length, tokens)
        tokens -= length


def token_budget(base: Base, learning: Learning) -> int:
    """Tokens per microbatch: the config's `microbatch_tokens`, or what the device's memory allows."""
    if learning.microbatch_tokens is not None:
        return learning.microbatch_tokens
    if base.device.type != "cuda":
        return CPU_BUDGET
    memory = torch.cuda.get_device_properties(base.device).total_memory
    item_bytes = next(base.model.parameters()).element_size()
    gates = 4 if base.trainable_forward is None or base.use_hf_modules else 2
    saved = bytes_per_token(base.model.config.get_text_config(), item_bytes, learning.checkpointing, gates)
    return max(MIN_BUDGET, min(MAX_BUDGET, int(MEMORY_SHARE * memory / saved)))


def bytes_per_token(config: PreTrainedConfig, item_bytes: int, checkpointing: bool, gates: int) -> int:
    """Activation memory of one token: in every layer about ten vectors of the hidden size and `gates` vectors of the
    MLP's size; with gradient checkpointing one float32 vector per layer, and all of one layer. While a layer runs, both
    halves of its MLP are held in float32."""
    hidden, layers = config.hidden_size, config.num_hidden_layers
    mlp = getattr(config, "intermediate_size", 4 * hidden)
    layer = item_bytes * (10 * hidden + gates * mlp)
    return (layers * 4 * hidden + layer if checkpointing else layers * layer) + 4 * 2 * mlp
