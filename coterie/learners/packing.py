"""Rows of a batch → streams that fit the token budget, in which rows that begin alike share their beginning."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from coterie.models.attention import Packed, Span, to_device_async
from coterie.types import Batch

SHARE = 8  # tokens; a shorter common beginning is not worth a prefix of its own


@dataclass
class Stream:
    """One forward: some rows, flat, and where the sampled tokens are predicted in it."""

    tokens: Tensor  # [S]
    positions: Tensor  # [S]
    layout: Packed
    source: Tensor  # [N] into the stream: the place that predicts each sampled token
    index: Tensor  # [N] into the batch: the sampled tokens themselves


def joined(streams: Sequence[Stream]) -> Stream:
    """One stream after the other; whoever reads them knows which sampled tokens are whose."""
    if len(streams) == 1:
        return streams[0]
    spans, at = [], 0
    for stream in streams:
        spans += [span.after(at) for span in stream.layout.spans]
        at += len(stream.tokens)
    tokens, positions, source, index = (
        torch.cat([getattr(stream, name) for stream in streams]) for name in ("tokens", "positions", "source", "index")
    )
    return Stream(tokens, positions, Packed(spans, tokens.device), source, index)


@dataclass
class _Group:
    """Rows with a common beginning of `shared` tokens."""

    rows: list[int]
    shared: int

    def cost(self, lengths: Sequence[int]) -> int:
        return self.shared + sum(lengths[r] - self.shared for r in self.rows)


def streams(batch: Batch, budget: int, device: torch.device | str = "cpu", share: bool = True) -> Iterator[Stream]:
    """Cut a batch by token budget. How it is cut changes no gradient: the weights are already decided."""
    starts = torch.searchsorted(batch.row, torch.arange(batch.rows + 1)).tolist()
    rows = [batch.tokens[a:b] for a, b in pairwise(starts)]
    lengths = [len(row) for row in rows]
    micro: list[_Group] = []
    used = 0
    groups = _groups(rows) if share else [_Group([r], 0) for r in range(len(rows))]
    for group in _cut(groups, lengths, budget):
        cost = group.cost(lengths)
        if micro and used + cost > budget:
            yield _stream(batch, rows, starts, micro, device)
            micro, used = [], 0
        micro.append(group)
        used += cost
    if micro:
        yield _stream(batch, rows, starts, micro, device)


def _groups(rows: Sequence[Tensor]) -> list[_Group]:
    """Neighbours in sorted order that share a beginning; a row joins if that saves tokens in all."""
    as_lists = [row.tolist() for row in rows]
    groups: list[_Group] = []
    for r in sorted(range(len(rows)), key=lambda r: as_lists[r]):
        group = groups[-1] if groups else None
        if group is not None:
            last = group.rows[-1]
            common = min(_common(rows[last], rows[r]), len(rows[r]) - 1, len(rows[last]) - 1)
            shared = common if len(group.rows) == 1 else min(group.shared, common)
            if shared >= SHARE and len(group.rows) * shared >= (len(group.rows) - 1) * group.shared:
                group.rows.append(r)
                group.shared = shared
                continue
        groups.append(_Group([r], 0))
    return groups


def _common(a: Tensor, b: Tensor) -> int:
    n = min(len(a), len(b))
    differs = (a[:n] != b[:n]).nonzero()
    return int(differs[0]) if len(differs) else n


def _cut(groups: list[_Group], lengths: Sequence[int], budget: int) -> Iterator[_Group]:
    """Split groups that are over the budget; each part carries the beginning again."""
    for group in groups:
        part: list[int] = []
        for r in group.rows:
            if part and _Group([*part, r], group.shared).cost(lengths) > budget:
                yield _Group(part, group.shared if len(part) > 1 else 0)
                part = []
            part.append(r)
        yield _Group(part, group.shared if len(part) > 1 else 0)


def _stream(
    batch: Batch, rows: Sequence[Tensor], starts: list[int], groups: list[_Group], device: torch.device | str
) -> Stream:
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
            place = torch.cat(
                [torch.arange(prefix[0], sum(prefix)) if prefix else at + torch.arange(0), at + torch.arange(len(own))]
            )
            said = batch.mask[starts[r] : starts[r + 1]].nonzero()[:, 0]
            sources.append(place[said - 1])
            indices.append(starts[r] + said)
            at += len(own)
    return Stream(
        to_device_async(torch.cat(tokens), device),
        to_device_async(torch.cat(positions), device),
        Packed(spans, device),
        to_device_async(torch.cat(sources), device),
        to_device_async(torch.cat(indices), device),
    )
