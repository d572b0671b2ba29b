"""Our attention, plugged into every Hugging Face model: the layout of a forward decides who sees whom.

All forwards run on one flat stream of tokens, `[1, T]`, without padding. A model's own attention
modules hand us queries, keys and values of the stream, and the layout that came along attends:
`Packed` for learning, the engine's slot cache for sampling.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate, pairwise
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import AttentionInterface

from coterie.kernels import varlen_attention

NAME = "coterie"
NOWHERE = 1 << 30  # a position no query reaches


class UnsupportedModel(ValueError):
    """A model that our attention cannot drive."""


class Layout(Protocol):
    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, scale: float, window: int | None) -> Tensor:
        """q [Hq, T, D], k and v [Hkv, T, D] → [T, Hq, D]."""


def _attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float,
    layout: Layout | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    if layout is None or softcap is not None:
        raise UnsupportedModel(f"{type(module).__name__} needs attention that the native engine does not have")
    return layout.attend(module.layer_idx, query[0], key[0], value[0], scaling, sliding_window)[None], None


# Not in transformers' table of masks on purpose: a model then builds no mask at all.
AttentionInterface.register(NAME, _attention)


@dataclass(frozen=True)
class Span:
    """A run of the stream that one row owns, after the prefix it may share with other rows."""

    start: int
    length: int
    prefix: tuple[int, int] | None = None  # start and length of the shared part

    def after(self, tokens: int) -> Span:
        """The same in a stream with so many tokens before it."""
        prefix = None if self.prefix is None else (self.prefix[0] + tokens, self.prefix[1])
        return Span(self.start + tokens, self.length, prefix)


def allowed(q_at: Tensor, k_at: Tensor, window: int | None) -> Tensor:
    """Which keys a query sees, by their positions in the row: [R, 1, Nq, Nk]."""
    sees = k_at[:, None, None, :] <= q_at[:, None, :, None]
    if window is not None:
        sees &= k_at[:, None, None, :] > q_at[:, None, :, None] - window
    return sees


@dataclass
class _Bucket:
    """Rows of similar length, padded to each other for one attention call."""

    q_index: Tensor  # [R, Nq] into the stream
    k_index: Tensor  # [R, Nk]
    q_at: Tensor  # [R, Nq] position in the row
    k_at: Tensor  # [R, Nk], NOWHERE on padding
    real: Tensor  # which of the R·Nq are no padding
    masks: dict[int | None, Tensor] = field(default_factory=dict, init=False)

    def mask(self, window: int | None) -> Tensor:
        if window not in self.masks:
            self.masks[window] = allowed(self.q_at, self.k_at, window)
        return self.masks[window]


class Packed:
    """Rows one after the other; rows that begin alike may share the tokens of their beginning."""

    def __init__(self, spans: Sequence[Span], device: torch.device | str = "cpu") -> None:
        self.spans, self.device = sorted(spans, key=lambda span: span.start), device
        assert all(a.start + a.length == b.start for a, b in pairwise(self.spans)), "spans cover the stream"

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, scale: float, window: int | None) -> Tensor:
        # Rows of a single query have another layout in the kernel, without gradients.
        if varlen_attention.serves(q, v) and self._ragged.longest_q > 1:
            return self._ragged.attend(q, k, v, scale, window)
        outs = []
        for b in self._buckets:
            out = F.scaled_dot_product_attention(
                _gather(q, b.q_index),
                _gather(k, b.k_index),
                _gather(v, b.k_index),
                attn_mask=b.mask(window),
                scale=scale,
                enable_gqa=q.shape[0] != k.shape[0],
            )  # [R, Hq, Nq, D]
            outs.append(out.transpose(1, 2).flatten(0, 1).index_select(0, b.real))
        return torch.cat(outs).index_select(0, self._back)

    @cached_property
    def _ragged(self) -> varlen_attention.Ragged:
        return _ragged(self.spans, self.device)

    @cached_property
    def _buckets(self) -> list[_Bucket]:
        return [_bucket(group, self.device) for group in _alike(self.spans)]

    @cached_property
    def _back(self) -> Tensor:
        """Where a token of the stream stands among the buckets' outputs."""
        return torch.cat([b.q_index.flatten()[b.real] for b in self._buckets]).argsort()


def _gather(x: Tensor, index: Tensor) -> Tensor:
    """[H, T, D], [R, N] → [R, H, N, D]. Not by `x[:, index]`: its gradient takes several times as long on a CPU."""
    picked = x.transpose(0, 1).index_select(0, index.flatten())
    return picked.view(*index.shape, *picked.shape[1:]).transpose(1, 2)


def _keys(span: Span) -> Tensor:
    """Where a row's keys stand in the stream."""
    own = torch.arange(span.start, span.start + span.length)
    return own if span.prefix is None else torch.cat([torch.arange(span.prefix[0], sum(span.prefix)), own])


def _ragged(spans: Sequence[Span], device: torch.device | str) -> varlen_attention.Ragged:
    queries = [span.length for span in spans]
    keys = [span.length + (span.prefix[1] if span.prefix else 0) for span in spans]
    q_ends, k_ends = (torch.tensor([0, *accumulate(n)], dtype=torch.int32) for n in (queries, keys))
    index = to_device_async(torch.cat([_keys(span) for span in spans]), device) if keys != queries else None
    return varlen_attention.Ragged(
        to_device_async(q_ends, device), to_device_async(k_ends, device), max(queries), max(keys), index
    )


def to_device_async(x: Tensor, device: torch.device | str) -> Tensor:
    """On the device, without waiting for what it is doing."""
    if torch.device(device).type != "cuda":
        return x.to(device)
    return x.pin_memory().to(device, non_blocking=True)


def _alike(spans: Sequence[Span], waste: float = 1.25, few: int = 16) -> list[list[Span]]:
    """Spans sorted by length and cut where padding would cost more than a quarter."""

    def size(span: Span) -> tuple[int, int]:
        return span.length + (span.prefix[1] if span.prefix else 0), span.length

    groups: list[list[Span]] = []
    for span in sorted(spans, key=size):
        first = groups[-1][0] if groups else None
        if first is not None and all(s <= waste * f + few for s, f in zip(size(span), size(first), strict=True)):
            groups[-1].append(span)
        else:
            groups.append([span])
    return groups


def _bucket(spans: list[Span], device: torch.device | str) -> _Bucket:
    heads = [s.prefix[1] if s.prefix else 0 for s in spans]
    queries = max(s.length for s in spans)
    keys = max(h + s.length for h, s in zip(heads, spans, strict=True))
    q_index = torch.zeros(len(spans), queries, dtype=torch.long)
    k_index = torch.zeros(len(spans), keys, dtype=torch.long)
    q_at = torch.full((len(spans), queries), NOWHERE)
    k_at = torch.full((len(spans), keys), NOWHERE + 1)
    for i, (span, head) in enumerate(zip(spans, heads, strict=True)):
        q_index[i, : span.length] = torch.arange(span.start, span.start + span.length)
        q_at[i, : span.length] = torch.arange(head, head + span.length)
        k_index[i, : head + span.length] = _keys(span)
        k_at[i, : head + span.length] = torch.arange(head + span.length)
    real = (q_at < NOWHERE).flatten().nonzero()[:, 0]
    return _Bucket(*(to_device_async(x, device) for x in (q_index, k_index, q_at, k_at, real)))
