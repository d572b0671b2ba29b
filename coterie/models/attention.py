"""Our attention, plugged into every Hugging Face model: the layout of a forward decides who sees whom.

All forwards run on one flat stream of tokens, `[1, T]`, without padding. A model's own attention
modules hand us queries, keys and values of the stream, and the layout that came along attends:
`Packed` for learning, the engine's slot cache for sampling.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import AttentionInterface

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
    real: Tensor  # [R, Nq] bool, not padding
    masks: dict[int | None, Tensor]

    def mask(self, window: int | None) -> Tensor:
        if window not in self.masks:
            self.masks[window] = allowed(self.q_at, self.k_at, window)
        return self.masks[window]


class Packed:
    """Rows one after the other; rows that begin alike may share the tokens of their beginning."""

    def __init__(self, spans: Sequence[Span], device: torch.device | str = "cpu") -> None:
        self.spans = list(spans)
        self.buckets = [_bucket(group, device) for group in _alike(spans)]
        order = torch.cat([b.q_index[b.real] for b in self.buckets])
        self.back = torch.empty_like(order)  # where a token of the stream stands among the buckets' outputs
        self.back[order] = torch.arange(len(order), device=order.device)

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, scale: float, window: int | None) -> Tensor:
        outs = []
        for b in self.buckets:
            out = F.scaled_dot_product_attention(
                _gather(q, b.q_index),
                _gather(k, b.k_index),
                _gather(v, b.k_index),
                attn_mask=b.mask(window),
                scale=scale,
                enable_gqa=q.shape[0] != k.shape[0],
            )  # [R, Hq, Nq, D]
            outs.append(out.transpose(1, 2).flatten(0, 1).index_select(0, b.real.flatten().nonzero()[:, 0]))
        return torch.cat(outs).index_select(0, self.back)


def _gather(x: Tensor, index: Tensor) -> Tensor:
    """[H, T, D], [R, N] → [R, H, N, D]. Not by `x[:, index]`: its gradient takes several times as long on a CPU."""
    picked = x.transpose(0, 1).index_select(0, index.flatten())
    return picked.view(*index.shape, *picked.shape[1:]).transpose(1, 2)


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
        own = torch.arange(span.start, span.start + span.length)
        q_index[i, : span.length] = own
        q_at[i, : span.length] = torch.arange(head, head + span.length)
        k_index[i, head : head + span.length] = own
        if span.prefix:
            k_index[i, :head] = torch.arange(span.prefix[0], span.prefix[0] + head)
        k_at[i, : head + span.length] = torch.arange(head + span.length)
    real = q_at < NOWHERE
    index, at = (q_index.to(device), k_index.to(device)), (q_at.to(device), k_at.to(device))
    return _Bucket(*index, *at, real.to(device), {})
