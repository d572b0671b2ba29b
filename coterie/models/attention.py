"""Our attention, registered with transformers: a forward's layout computes attention in place of the model's own.

All forwards run on one packed stream of tokens, `[1, T]`, without padding. A model's own attention modules pass us the
stream's queries, keys and values, and the layout attends: `Packed` for training, layouts on the KV cache for sampling.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate, pairwise
from typing import Any, NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import AttentionInterface

from coterie.kernels import varlen_attention

NAME = "coterie"
PAD_POSITION = 1 << 30  # after every real position, so causal masks hide it


class UnsupportedModel(ValueError):
    """A model that our attention cannot drive."""


class Layout(Protocol):
    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, scale: float, window: int | None) -> Tensor:
        """q [Hq, T, D], k and v [Hkv, T, D] → [T, Hq, D]."""


class AttentionParams(NamedTuple):
    """The attention parameters of a layer."""

    scale: float
    window: int | None


class KVShape(NamedTuple):
    """The shape of the KV cache that a model needs per token; keys and values have the same."""

    layers: int
    heads: int
    head_dim: int


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


# Deliberately not registered in transformers' mask interface too: the model then builds no mask.
AttentionInterface.register(NAME, _attention)


@dataclass(frozen=True)
class Span:
    """A run of the stream that belongs to one row, after the prefix that it shares with rows before it."""

    start: int
    length: int
    prefix: tuple[tuple[int, int], ...] = ()  # start and length of its pieces, each a part of another span

    @property
    def keys(self) -> int:
        """The length of the row up to the end of the span."""
        return self.length + sum(length for _, length in self.prefix)

    def after(self, tokens: int) -> Span:
        """The same span in a stream with so many tokens before it."""
        return Span(self.start + tokens, self.length, tuple((start + tokens, length) for start, length in self.prefix))


def causal_mask(q_at: Tensor, k_at: Tensor, window: int | None) -> Tensor:
    """True where a query sees a key, by their positions in the row, in a sliding window if given: [R, 1, Nq, Nk]."""
    sees = k_at[:, None, None, :] <= q_at[:, None, :, None]
    if window is not None:
        sees &= k_at[:, None, None, :] > q_at[:, None, :, None] - window
    return sees


@dataclass
class _Bucket:
    """Rows of similar length, padded to the longest for one SDPA call."""

    q_index: Tensor  # [R, Nq] into the stream
    k_index: Tensor  # [R, Nk]
    q_at: Tensor  # [R, Nq] position in the row
    k_at: Tensor  # [R, Nk], PAD_POSITION on padding
    real: Tensor  # indices of the R·Nq queries that are not padding
    masks: dict[int | None, Tensor] = field(default_factory=dict, init=False)

    def mask(self, window: int | None) -> Tensor:
        if window not in self.masks:
            self.masks[window] = causal_mask(self.q_at, self.k_at, window)
        return self.masks[window]


class Packed:
    """Packed rows; rows with a common prefix may share its tokens.

    On CUDA in half precision this is one varlen flash attention; elsewhere SDPA over padded buckets.
    """

    def __init__(self, spans: Sequence[Span], device: torch.device | str = "cpu") -> None:
        self.spans, self.device = sorted(spans, key=lambda span: span.start), device
        assert all(a.start + a.length == b.start for a, b in pairwise(self.spans)), "spans cover the stream"

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, scale: float, window: int | None) -> Tensor:
        # With one query per row the flash kernel swaps queries and head groups, for decoding; that has no backward.
        if varlen_attention.is_supported(q, v) and self._varlen.max_seqlen_q > 1:
            return self._varlen.attend(q, k, v, scale, window)
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
        return torch.cat(outs).index_select(0, self._order)

    @cached_property
    def _varlen(self) -> varlen_attention.VarlenRows:
        return _varlen_rows(self.spans, self.device)

    @cached_property
    def _buckets(self) -> list[_Bucket]:
        return [_bucket(group, self.device) for group in _group_by_length(self.spans)]

    @cached_property
    def _order(self) -> Tensor:
        """Each stream token's place among the buckets' outputs."""
        return torch.cat([b.q_index.flatten()[b.real] for b in self._buckets]).argsort()


class RecordingLayout:
    """`Packed` that records each layer's KV shape and attention parameters, to probe a new model."""

    def __init__(self, rows: Sequence[Tensor]) -> None:
        starts = [sum(len(row) for row in rows[:i]) for i in range(len(rows))]
        spans = [Span(start, len(row)) for start, row in zip(starts, rows, strict=True)]
        self.packed = Packed(spans, rows[0].device)
        self.shapes: dict[int, tuple[int, int, int]] = {}
        self.params: dict[int, AttentionParams] = {}

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, scale: float, window: int | None) -> Tensor:
        self.shapes[layer] = (k.shape[0], k.shape[-1], v.shape[-1])
        self.params[layer] = AttentionParams(scale, window)
        return self.packed.attend(layer, q, k, v, scale, window)

    @property
    def kv_shape(self) -> KVShape | None:
        """None if layers differ from each other, or keys from values: one cache tensor could not hold them."""
        shapes = set(self.shapes.values())
        if len(shapes) != 1 or sorted(self.shapes) != list(range(len(self.shapes))):
            return None
        heads, key_dim, value_dim = shapes.pop()
        return KVShape(len(self.shapes), heads, key_dim) if key_dim == value_dim else None


def _gather(x: Tensor, index: Tensor) -> Tensor:
    """[H, T, D], [R, N] → [R, H, N, D]. Not `x[:, index]`, whose backward takes several times as long on a CPU."""
    picked = x.transpose(0, 1).index_select(0, index.flatten())
    return picked.view(*index.shape, *picked.shape[1:]).transpose(1, 2)


def _key_index(span: Span) -> Tensor:
    """The indices of a row's keys in the stream."""
    pieces = (*span.prefix, (span.start, span.length))
    return torch.cat([torch.arange(start, start + length) for start, length in pieces])


def _varlen_rows(spans: Sequence[Span], device: torch.device | str) -> varlen_attention.VarlenRows:
    queries = [span.length for span in spans]
    keys = [span.keys for span in spans]
    cumulative = (torch.tensor([0, *accumulate(n)], dtype=torch.int32) for n in (queries, keys))
    cu_seqlens_q, cu_seqlens_k = (to_device_async(x, device) for x in cumulative)
    index = to_device_async(torch.cat([_key_index(span) for span in spans]), device) if keys != queries else None
    return varlen_attention.VarlenRows(cu_seqlens_q, cu_seqlens_k, max(queries), max(keys), index)


def to_device_async(x: Tensor, device: torch.device | str) -> Tensor:
    """Copy to the device without a host sync: on CUDA through pinned memory."""
    if torch.device(device).type != "cuda":
        return x.to(device)
    return x.pin_memory().to(device, non_blocking=True)


def _group_by_length(spans: Sequence[Span], waste: float = 1.25, few: int = 16) -> list[list[Span]]:
    """Spans sorted by length, in groups in which padding costs at most about a quarter."""

    def size(span: Span) -> tuple[int, int]:
        return span.keys, span.length

    groups: list[list[Span]] = []
    for span in sorted(spans, key=size):
        first = groups[-1][0] if groups else None
        if first is not None and all(s <= waste * f + few for s, f in zip(size(span), size(first), strict=True)):
            groups[-1].append(span)
        else:
            groups.append([span])
    return groups


def _bucket(spans: list[Span], device: torch.device | str) -> _Bucket:
    queries, keys = max(s.length for s in spans), max(s.keys for s in spans)
    q_index = torch.zeros(len(spans), queries, dtype=torch.long)
    k_index = torch.zeros(len(spans), keys, dtype=torch.long)
    q_at = torch.full((len(spans), queries), PAD_POSITION)
    k_at = torch.full((len(spans), keys), PAD_POSITION + 1)
    for i, span in enumerate(spans):
        q_index[i, : span.length] = torch.arange(span.start, span.start + span.length)
        q_at[i, : span.length] = torch.arange(span.keys - span.length, span.keys)
        k_index[i, : span.keys] = _key_index(span)
        k_at[i, : span.keys] = torch.arange(span.keys)
    real = (q_at < PAD_POSITION).flatten().nonzero()[:, 0]
    return _Bucket(*(to_device_async(x, device) for x in (q_index, k_index, q_at, k_at, real)))
