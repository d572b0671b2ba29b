"""Sequence packing: cut a batch into padding-free microbatches within a token budget.

Rows that begin with the same tokens share that prefix, so it is computed once per microbatch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
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
MEMORY_SHARE = 1 / 6  # of a GPU's memory is for activations; small models then launch few, large kernels
LEAST, MOST = 1024, 1 << 16  # tokens


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
    """One token that nothing is learned from: for a process that has fewer microbatches of a sharded model."""
    zero, none = torch.zeros(1, dtype=torch.long, device=device), torch.zeros(0, dtype=torch.long, device=device)
    return Microbatch(zero, zero, Packed([Span(0, 1)], device), none, none)


@dataclass
class _Group:
    """Rows with a common prefix of `shared` tokens."""

    rows: list[int]
    shared: int

    def cost(self, lengths: Sequence[int]) -> int:
        return self.shared + sum(lengths[r] - self.shared for r in self.rows)


def pack_microbatches(
    batch: Batch, budget: int, device: torch.device | str = "cpu", share: bool = True
) -> Iterator[Microbatch]:
    """Cut a batch by token budget. How it is cut changes no gradient: the loss weights are already fixed."""
    starts = torch.searchsorted(batch.row, torch.arange(batch.rows + 1)).tolist()
    rows = [batch.tokens[a:b] for a, b in pairwise(starts)]
    lengths = [len(row) for row in rows]
    micro: list[_Group] = []
    used = 0
    groups = _groups(rows) if share else [_Group([r], 0) for r in range(len(rows))]
    for group in _cut(groups, lengths, budget):
        cost = group.cost(lengths)
        if micro and used + cost > budget:
            yield _pack(batch, rows, starts, micro, device)
            micro, used = [], 0
        micro.append(group)
        used += cost
    if micro:
        yield _pack(batch, rows, starts, micro, device)


def _groups(rows: Sequence[Tensor]) -> list[_Group]:
    """Group neighbors in sorted order that share a prefix; a row joins if that saves tokens overall."""
    as_lists = [row.tolist() for row in rows]
    groups: list[_Group] = []
    for r in sorted(range(len(rows)), key=lambda r: as_lists[r]):
        group = groups[-1] if groups else None
        if group is not None:
            last = group.rows[-1]
            common = min(_common_prefix(rows[last], rows[r]), len(rows[r]) - 1, len(rows[last]) - 1)
            shared = common if len(group.rows) == 1 else min(group.shared, common)
            if shared >= MIN_PREFIX and len(group.rows) * shared >= (len(group.rows) - 1) * group.shared:
                group.rows.append(r)
                group.shared = shared
                continue
        groups.append(_Group([r], 0))
    return groups


def _common_prefix(a: Tensor, b: Tensor) -> int:
    n = min(len(a), len(b))
    differs = (a[:n] != b[:n]).nonzero()
    return int(differs[0]) if len(differs) else n


def _cut(groups: list[_Group], lengths: Sequence[int], budget: int) -> Iterator[_Group]:
    """Split groups that exceed the budget; each part repeats the prefix."""
    for group in groups:
        part: list[int] = []
        for r in group.rows:
            if part and _Group([*part, r], group.shared).cost(lengths) > budget:
                yield _Group(part, group.shared if len(part) > 1 else 0)
                part = []
            part.append(r)
        yield _Group(part, group.shared if len(part) > 1 else 0)


def _pack(
    batch: Batch, rows: Sequence[Tensor], starts: list[int], groups: list[_Group], device: torch.device | str
) -> Microbatch:
    tokens, positions, spans, sources, indices = [], [], [], [], []
    at = 0
    for group in groups:
        prefix = None
        if group.shared:
            prefix = (at, group.shared)
            spans.append(Span(at, group.shared))
            tokens.append(rows[group.rows[0]][: group.shared])
            positions.append(torch.arange(group.shared))
            at += group.shared
        for r in group.rows:
            own = rows[r][group.shared :]
            spans.append(Span(at, len(own), prefix))
            tokens.append(own)
            positions.append(torch.arange(group.shared, len(rows[r])))
            before = torch.arange(prefix[0], sum(prefix)) if prefix else torch.arange(0)
            place = torch.cat([before, at + torch.arange(len(own))])
            sampled = batch.mask[starts[r] : starts[r + 1]].nonzero()[:, 0]
            sources.append(place[sampled - 1])
            indices.append(starts[r] + sampled)
            at += len(own)
    parts = (to_device_async(torch.cat(part), device) for part in (tokens, positions, sources, indices))
    token, position, source, index = parts
    return Microbatch(token, position, Packed(spans, device), source, index)


def token_budget(base: Base, learning: Learning) -> int:
    """Tokens per microbatch: the config's `microbatch_tokens`, or what the device's memory allows."""
    if learning.microbatch_tokens is not None:
        return learning.microbatch_tokens
    if base.device.type != "cuda":
        return CPU_BUDGET
    memory = torch.cuda.get_device_properties(base.device).total_memory
    item_bytes = next(base.model.parameters()).element_size()
    gates = 4 if base.trainable_forward is None or base.use_hf_modules else 2
    kept = bytes_per_token(base.model.config.get_text_config(), item_bytes, learning.checkpointing, gates)
    return max(LEAST, min(MOST, int(MEMORY_SHARE * memory / kept)))


def bytes_per_token(config: PreTrainedConfig, item_bytes: int, checkpointing: bool, gates: int) -> int:
    """Activation memory of one token: in every layer about ten vectors of the hidden size and `gates` vectors of the
    MLP's size; with gradient checkpointing one float32 vector per layer, and all of one layer. While a layer runs, both
    halves of its MLP are held in float32."""
    hidden, layers = config.hidden_size, config.num_hidden_layers
    mlp = getattr(config, "intermediate_size", 4 * hidden)
    layer = item_bytes * (10 * hidden + gates * mlp)
    return (layers * 4 * hidden + layer if checkpointing else layers * layer) + 4 * 2 * mlp
