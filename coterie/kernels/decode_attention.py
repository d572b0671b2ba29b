"""Decode attention in Triton: RoPE, KV cache write and attention for one new token per row.

Flash-decoding: few rows split their keys among several programs, and a second kernel merges the partial softmaxes.
For prefill there is only RoPE and the KV cache write; the attention itself is `varlen_attention`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from coterie.kernels.pdl_launch import pdl_options, pdl_wait

KEY_BLOCK = 64  # keys per block
MIN_PROGRAMS = 128  # that keep a GPU busy; with fewer the keys are split among more programs
MAX_PROGRAMS = 264  # with more, fewer pipeline stages let more programs share an SM
QKNorms = tuple[Any, Any]  # RMSNorms of queries and keys, in Qwen 3


@triton.jit
def _rope(x, partner, cos, sin):
    """Rotary positions; `partner` is x rolled by half a head, the minus sign is in `sin`."""
    return x * cos + partner * sin


@triton.jit
def _decode_attention(
    qkv, cos, sin, keys, values, state, slots, out, sums, q_norm, k_norm, epsilon, scale, window, capacity, splits,
    stride, QUERY_HEADS: tl.constexpr, KEY_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, GROUP: tl.constexpr,
    PADDED: tl.constexpr, BLOCK: tl.constexpr, NORM: tl.constexpr, SINGLE_SPLIT: tl.constexpr, PRECISION: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    pdl_wait(PDL)
    row, head, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    at = tl.load(state + row * stride + 1)
    d = tl.arange(0, HEAD_DIM)
    partner = (d + HEAD_DIM // 2) % HEAD_DIM
    sign = tl.where(d < HEAD_DIM // 2, -1.0, 1.0)
    group = tl.arange(0, PADDED)
    real = (group < GROUP)[:, None]
    here = qkv + row.to(tl.int64) * (QUERY_HEADS + 2 * KEY_HEADS) * HEAD_DIM
    rope_at = tl.maximum(at, 0) * HEAD_DIM + d
    rope_cos, rope_sin = tl.load(cos + rope_at), tl.load(sin + rope_at) * sign
    places = (head * GROUP + group)[:, None] * HEAD_DIM
    q = tl.load(here + places + d[None, :], mask=real, other=0.0).to(tl.float32)
    q_other = tl.load(here + places + partner[None, :], mask=real, other=0.0).to(tl.float32)
    new_k = tl.load(here + (QUERY_HEADS + head) * HEAD_DIM + d).to(tl.float32)
    k_other = tl.load(here + (QUERY_HEADS + head) * HEAD_DIM + partner).to(tl.float32)
    new_v = tl.load(here + (QUERY_HEADS + KEY_HEADS + head) * HEAD_DIM + d)
    if NORM:
        q_rstd = tl.rsqrt(tl.sum(q * q, axis=1) / HEAD_DIM + epsilon)[:, None]
        k_rstd = tl.rsqrt(tl.sum(new_k * new_k, axis=0) / HEAD_DIM + epsilon)
        q = q * q_rstd * tl.load(q_norm + d).to(tl.float32)[None, :]
        q_other = q_other * q_rstd * tl.load(q_norm + partner).to(tl.float32)[None, :]
        new_k = new_k * k_rstd * tl.load(k_norm + d).to(tl.float32)
        k_other = k_other * k_rstd * tl.load(k_norm + partner).to(tl.float32)
    kind = new_v.dtype
    q = _rope(q, q_other, rope_cos[None, :], rope_sin[None, :]).to(kind)
    new_k = _rope(new_k, k_other, rope_cos, rope_sin).to(kind)

    first = tl.maximum(at + 1 - window, 0)  # an idle row, at position −1, has no keys
    share = tl.cdiv(tl.cdiv(tl.maximum(at - first, 0), splits), BLOCK) * BLOCK
    start = first + split * share
    end = tl.minimum(at, start + share)
    slot = (tl.load(slots + row * stride).to(tl.int64) * KEY_HEADS + head) * capacity * HEAD_DIM
    peak = tl.full([PADDED], -float("inf"), tl.float32)
    total = tl.zeros([PADDED], tl.float32)
    weighted = tl.zeros([PADDED, HEAD_DIM], tl.float32)
    for n in range(start, end, BLOCK):
        column = n + tl.arange(0, BLOCK)
        live = column < end
        cells = slot + column[:, None] * HEAD_DIM + d[None, :]
        k = tl.load(keys + cells, mask=live[:, None], other=0.0)
        scores = tl.dot(q, tl.trans(k), input_precision=PRECISION) * scale
        scores = tl.where(live[None, :], scores, -float("inf"))
        new_peak = tl.maximum(peak, tl.max(scores, axis=1))
        weight = tl.exp(scores - new_peak[:, None])
        decay = tl.exp(peak - new_peak)
        v = tl.load(values + cells, mask=live[:, None], other=0.0)
        weighted = weighted * decay[:, None] + tl.dot(weight.to(kind), v, input_precision=PRECISION)
        total = total * decay + tl.sum(weight, axis=1)
        peak = new_peak
    if split == 0:  # the new token, whose key and value this program also writes
        own = tl.sum(q.to(tl.float32) * new_k.to(tl.float32)[None, :], axis=1) * scale
        new_peak = tl.maximum(peak, own)
        decay, weight = tl.exp(peak - new_peak), tl.exp(own - new_peak)
        weighted = weighted * decay[:, None] + weight[:, None] * new_v.to(tl.float32)[None, :]
        total = total * decay + weight
        peak = new_peak
        tl.store(keys + slot + at * HEAD_DIM + d, new_k, mask=(d < HEAD_DIM) & (at >= 0))
        tl.store(values + slot + at * HEAD_DIM + d, new_v, mask=(d < HEAD_DIM) & (at >= 0))
    place = row * QUERY_HEADS + head * GROUP + group
    if SINGLE_SPLIT:
        tl.store(out + place[:, None] * HEAD_DIM + d[None, :], (weighted / total[:, None]).to(kind), mask=real)
    else:
        split_at = place * splits + split
        tl.store(out + split_at[:, None] * HEAD_DIM + d[None, :], weighted, mask=real)
        tl.store(sums + split_at * 2, peak, mask=group < GROUP)
        tl.store(sums + split_at * 2 + 1, total, mask=group < GROUP)


@triton.jit
def _merge_splits(partials, sums, out, splits, HEAD_DIM: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr):
    pdl_wait(PDL)
    place = tl.program_id(0)
    split, d = tl.arange(0, BLOCK), tl.arange(0, HEAD_DIM)
    real = split < splits
    peak = tl.load(sums + (place * splits + split) * 2, mask=real, other=-float("inf"))
    total = tl.load(sums + (place * splits + split) * 2 + 1, mask=real, other=0.0)
    weight = tl.where(real, tl.exp(peak - tl.max(peak, axis=0)), 0.0)
    cells = (place * splits + split)[:, None] * HEAD_DIM + d[None, :]
    weighted = tl.load(partials + cells, mask=real[:, None], other=0.0)
    merged = tl.sum(weighted * weight[:, None], axis=0) / tl.sum(total * weight, axis=0)
    tl.store(out + place * HEAD_DIM + d, merged.to(out.dtype.element_ty))


@dataclass(frozen=True)
class HeadShape:
    """Attention heads of a layer."""

    query_heads: int
    key_heads: int
    head_dim: int


def decode_attention(
    qkv: Tensor,
    rope: tuple[Tensor, Tensor],
    cache: Tensor,
    decode_state: Tensor,
    slots: Tensor,
    heads: HeadShape,
    scale: float,
    window: int | None,
    norms: QKNorms | None,
) -> Tensor:
    """Apply RoPE to the new queries and keys, write keys and values to the cache, and attend: → [R, Hq·D].

    qkv [R, (Hq + 2 Hkv)·D], rope cos and sin [capacity, D], cache [2, slots, Hkv, capacity, D]. `slots` [R], a column
    of the decode state, has each row's slot; column 1 of the state its position. Rows at position −1 are idle.
    """
    rows, group, capacity = len(qkv), heads.query_heads // heads.key_heads, cache.shape[3]
    splits = max(1, min(triton.cdiv(MIN_PROGRAMS, rows * heads.key_heads), capacity // (4 * KEY_BLOCK), 16))
    out = qkv.new_empty(rows, heads.query_heads * heads.head_dim)
    single = splits == 1
    partials = out if single else qkv.new_empty(rows * heads.query_heads * splits, heads.head_dim, dtype=torch.float32)
    sums = out if single else partials.new_empty(rows * heads.query_heads * splits, 2)
    q_norm, k_norm = (norm.weight for norm in norms) if norms else (qkv, qkv)
    epsilon = norms[0].variance_epsilon if norms else 0.0
    _decode_attention[(rows, heads.key_heads, splits)](
        qkv, *rope, cache[0], cache[1], decode_state, slots, partials, sums, q_norm, k_norm, epsilon, scale,
        window or 1 << 30, capacity, splits, decode_state.shape[1], heads.query_heads, heads.key_heads, heads.head_dim,
        group, max(16, triton.next_power_of_2(group)), KEY_BLOCK, norms is not None, single,
        "ieee" if qkv.dtype == torch.float32 else "tf32",
        num_stages=2 if rows * heads.key_heads * splits > MAX_PROGRAMS else 3, **pdl_options(qkv),
    )  # fmt: skip
    if not single:
        block = triton.next_power_of_2(splits)
        _merge_splits[(rows * heads.query_heads,)](
            partials, sums, out, splits, heads.head_dim, block, num_warps=1, **pdl_options(qkv)
        )
    return out


@triton.jit
def _rope_and_store_kv(
    qkv, cos, sin, keys, values, slots, positions, q_out, k_out, q_norm, k_norm, epsilon, capacity,
    QUERY_HEADS: tl.constexpr, KEY_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, PADDED: tl.constexpr,
    NORM: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    slot, at = tl.load(slots + token).to(tl.int64), tl.load(positions + token)
    head, d = tl.arange(0, PADDED)[:, None], tl.arange(0, HEAD_DIM)[None, :]
    partner = (d + HEAD_DIM // 2) % HEAD_DIM
    here = qkv + token * (QUERY_HEADS + 2 * KEY_HEADS) * HEAD_DIM + head * HEAD_DIM
    valid = head < QUERY_HEADS + 2 * KEY_HEADS
    raw = tl.load(here + d, mask=valid, other=0.0)
    x, other = raw.to(tl.float32), tl.load(here + partner, mask=valid, other=0.0).to(tl.float32)
    if NORM:
        rstd = tl.rsqrt(tl.sum(x * x, axis=1) / HEAD_DIM + epsilon)[:, None]
        own = tl.where(head < QUERY_HEADS, tl.load(q_norm + d), tl.load(k_norm + d)).to(tl.float32)
        others = tl.where(head < QUERY_HEADS, tl.load(q_norm + partner), tl.load(k_norm + partner)).to(tl.float32)
        x, other = x * rstd * own, other * rstd * others
    rope_cos = tl.load(cos + at * HEAD_DIM + d)
    rope_sin = tl.load(sin + at * HEAD_DIM + d) * tl.where(d < HEAD_DIM // 2, -1.0, 1.0)
    rotated = _rope(x, other, rope_cos, rope_sin).to(raw.dtype)
    key, value = head - QUERY_HEADS, head - QUERY_HEADS - KEY_HEADS
    is_key, is_value = (key >= 0) & (key < KEY_HEADS), (value >= 0) & (value < KEY_HEADS)
    tl.store(q_out + (token * QUERY_HEADS + head) * HEAD_DIM + d, rotated, mask=head < QUERY_HEADS)
    tl.store(k_out + (token * KEY_HEADS + key) * HEAD_DIM + d, rotated, mask=is_key)
    tl.store(keys + ((slot * KEY_HEADS + key) * capacity + at) * HEAD_DIM + d, rotated, mask=is_key)
    tl.store(values + ((slot * KEY_HEADS + value) * capacity + at) * HEAD_DIM + d, raw, mask=is_value)


def rope_and_store_kv(
    qkv: Tensor, rope: tuple[Tensor, Tensor], cache: Tensor, slots: Tensor, positions: Tensor, heads: HeadShape,
    norms: QKNorms | None,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Apply RoPE to packed prompt tokens and write their keys and values: → q [T, Hq, D], k and v [T, Hkv, D]."""
    tokens, capacity = len(qkv), cache.shape[3]
    q = qkv.new_empty(tokens, heads.query_heads, heads.head_dim)
    k = qkv.new_empty(tokens, heads.key_heads, heads.head_dim)
    q_norm, k_norm = (norm.weight for norm in norms) if norms else (qkv, qkv)
    _rope_and_store_kv[(tokens,)](
        qkv, *rope, cache[0], cache[1], slots, positions, q, k, q_norm, k_norm,
        norms[0].variance_epsilon if norms else 0.0, capacity, heads.query_heads, heads.key_heads, heads.head_dim,
        triton.next_power_of_2(heads.query_heads + 2 * heads.key_heads), norms is not None,
    )  # fmt: skip
    return q, k, qkv.view(tokens, -1, heads.head_dim)[:, heads.query_heads + heads.key_heads :]
