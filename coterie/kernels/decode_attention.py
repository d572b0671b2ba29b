"""Attention and sampling of one step on CUDA: a new token for every row, no word to the host."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from coterie.kernels.pdl_launch import begin, early
from coterie.kernels.sampling import BLOCK, Sampler

KEYS = 64  # read at once by one program
ENOUGH = 128  # programs that keep a GPU busy
MANY = 264  # programs, of which more share a processor if each reads less ahead
BLOCKS = 8  # of the vocabulary, weighed by one program
Norms = tuple[Any, Any]  # of queries and of keys, in Qwen 3


@triton.jit
def _turned(x, partner, cos, sin):
    """Rotary positions; `partner` is x half a width on, the minus is in the sine."""
    return x * cos + partner * sin


@triton.jit
def _attend(
    qkv, cos, sin, keys, values, sheet, slots, out, sums, q_norm, k_norm, epsilon, scale, window, capacity, splits,
    stride, HEADS: tl.constexpr, KEY_HEADS: tl.constexpr, WIDTH: tl.constexpr, GROUP: tl.constexpr,
    PADDED: tl.constexpr, BLOCK: tl.constexpr, NORM: tl.constexpr, WHOLE: tl.constexpr, EXACT: tl.constexpr,
    EARLY: tl.constexpr,
):  # fmt: skip
    begin(EARLY)
    row, head, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    at = tl.load(sheet + row * stride + 1)
    d = tl.arange(0, WIDTH)
    partner = (d + WIDTH // 2) % WIDTH
    sign = tl.where(d < WIDTH // 2, -1.0, 1.0)
    group = tl.arange(0, PADDED)
    real = (group < GROUP)[:, None]
    here = qkv + row.to(tl.int64) * (HEADS + 2 * KEY_HEADS) * WIDTH
    turn = tl.maximum(at, 0) * WIDTH + d
    turn_cos, turn_sin = tl.load(cos + turn), tl.load(sin + turn) * sign
    places = (head * GROUP + group)[:, None] * WIDTH
    q = tl.load(here + places + d[None, :], mask=real, other=0.0).to(tl.float32)
    q_other = tl.load(here + places + partner[None, :], mask=real, other=0.0).to(tl.float32)
    new_k = tl.load(here + (HEADS + head) * WIDTH + d).to(tl.float32)
    k_other = tl.load(here + (HEADS + head) * WIDTH + partner).to(tl.float32)
    new_v = tl.load(here + (HEADS + KEY_HEADS + head) * WIDTH + d)
    if NORM:
        q_size = tl.rsqrt(tl.sum(q * q, axis=1) / WIDTH + epsilon)[:, None]
        k_size = tl.rsqrt(tl.sum(new_k * new_k, axis=0) / WIDTH + epsilon)
        q = q * q_size * tl.load(q_norm + d).to(tl.float32)[None, :]
        q_other = q_other * q_size * tl.load(q_norm + partner).to(tl.float32)[None, :]
        new_k = new_k * k_size * tl.load(k_norm + d).to(tl.float32)
        k_other = k_other * k_size * tl.load(k_norm + partner).to(tl.float32)
    kind = new_v.dtype
    q = _turned(q, q_other, turn_cos[None, :], turn_sin[None, :]).to(kind)
    new_k = _turned(new_k, k_other, turn_cos, turn_sin).to(kind)

    first = tl.maximum(at + 1 - window, 0)  # a row that does not speak, at −1, has nothing before it
    share = tl.cdiv(tl.cdiv(tl.maximum(at - first, 0), splits), BLOCK) * BLOCK
    start = first + split * share
    end = tl.minimum(at, start + share)
    slot = (tl.load(slots + row * stride).to(tl.int64) * KEY_HEADS + head) * capacity * WIDTH
    most = tl.full([PADDED], -float("inf"), tl.float32)
    total = tl.zeros([PADDED], tl.float32)
    mean = tl.zeros([PADDED, WIDTH], tl.float32)
    for n in range(start, end, BLOCK):
        column = n + tl.arange(0, BLOCK)
        live = column < end
        cells = slot + column[:, None] * WIDTH + d[None, :]
        k = tl.load(keys + cells, mask=live[:, None], other=0.0)
        scores = tl.dot(q, tl.trans(k), input_precision=EXACT) * scale
        scores = tl.where(live[None, :], scores, -float("inf"))
        higher = tl.maximum(most, tl.max(scores, axis=1))
        weight = tl.exp(scores - higher[:, None])
        fade = tl.exp(most - higher)
        v = tl.load(values + cells, mask=live[:, None], other=0.0)
        mean = mean * fade[:, None] + tl.dot(weight.to(kind), v, input_precision=EXACT)
        total = total * fade + tl.sum(weight, axis=1)
        most = higher
    if split == 0:  # the new token itself, which this program also stores
        own = tl.sum(q.to(tl.float32) * new_k.to(tl.float32)[None, :], axis=1) * scale
        higher = tl.maximum(most, own)
        fade, weight = tl.exp(most - higher), tl.exp(own - higher)
        mean = mean * fade[:, None] + weight[:, None] * new_v.to(tl.float32)[None, :]
        total = total * fade + weight
        most = higher
        tl.store(keys + slot + at * WIDTH + d, new_k, mask=(d < WIDTH) & (at >= 0))
        tl.store(values + slot + at * WIDTH + d, new_v, mask=(d < WIDTH) & (at >= 0))
    place = row * HEADS + head * GROUP + group
    if WHOLE:
        tl.store(out + place[:, None] * WIDTH + d[None, :], (mean / total[:, None]).to(kind), mask=real)
    else:
        part = place * splits + split
        tl.store(out + part[:, None] * WIDTH + d[None, :], mean, mask=real)
        tl.store(sums + part * 2, most, mask=group < GROUP)
        tl.store(sums + part * 2 + 1, total, mask=group < GROUP)


@triton.jit
def _merge(parts, sums, out, splits, WIDTH: tl.constexpr, BLOCK: tl.constexpr, EARLY: tl.constexpr):
    begin(EARLY)
    place = tl.program_id(0)
    part, d = tl.arange(0, BLOCK), tl.arange(0, WIDTH)
    real = part < splits
    most = tl.load(sums + (place * splits + part) * 2, mask=real, other=-float("inf"))
    total = tl.load(sums + (place * splits + part) * 2 + 1, mask=real, other=0.0)
    weight = tl.where(real, tl.exp(most - tl.max(most, axis=0)), 0.0)
    cells = (place * splits + part)[:, None] * WIDTH + d[None, :]
    mean = tl.load(parts + cells, mask=real[:, None], other=0.0)
    whole = tl.sum(mean * weight[:, None], axis=0) / tl.sum(total * weight, axis=0)
    tl.store(out + place * WIDTH + d, whole.to(out.dtype.element_ty))


@dataclass(frozen=True)
class Heads:
    """How a layer's queries and keys are cut."""

    queries: int
    keys: int
    width: int


def attend(
    qkv: Tensor,
    turns: tuple[Tensor, Tensor],
    cache: Tensor,
    sheet: Tensor,
    slots: Tensor,
    heads: Heads,
    scale: float,
    window: int | None,
    norms: Norms | None,
) -> Tensor:
    """Turn the new queries and keys by their positions, store the keys and values, and attend to what is live.

    qkv [R, (Hq + 2 Hkv)·D], turns by position [capacity, D], cache [2, slots, Hkv, capacity, D], of which `slots` [R],
    a column of the sheet, says whose is whose; a row at position −1 is left alone. → [R, Hq·D]
    """
    rows, group, capacity = len(qkv), heads.queries // heads.keys, cache.shape[3]
    splits = max(1, min(triton.cdiv(ENOUGH, rows * heads.keys), capacity // (4 * KEYS), 16))
    out = qkv.new_empty(rows, heads.queries * heads.width)
    whole = splits == 1
    parts = out if whole else qkv.new_empty(rows * heads.queries * splits, heads.width, dtype=torch.float32)
    sums = out if whole else parts.new_empty(rows * heads.queries * splits, 2)
    q_norm, k_norm = (norm.weight for norm in norms) if norms else (qkv, qkv)
    epsilon = norms[0].variance_epsilon if norms else 0.0
    _attend[(rows, heads.keys, splits)](
        qkv, *turns, cache[0], cache[1], sheet, slots, parts, sums, q_norm, k_norm, epsilon, scale, window or 1 << 30,
        capacity, splits, sheet.shape[1], heads.queries, heads.keys, heads.width, group,
        max(16, triton.next_power_of_2(group)), KEYS, norms is not None, whole,
        "ieee" if qkv.dtype == torch.float32 else "tf32",
        num_stages=2 if rows * heads.keys * splits > MANY else 3, **early(qkv),
    )  # fmt: skip
    if not whole:
        block = triton.next_power_of_2(splits)
        _merge[(rows * heads.queries,)](parts, sums, out, splits, heads.width, block, num_warps=1, **early(qkv))
    return out


@triton.jit
def _place(
    qkv, cos, sin, keys, values, slots, positions, q_out, k_out, q_norm, k_norm, epsilon, capacity,
    HEADS: tl.constexpr, KEY_HEADS: tl.constexpr, WIDTH: tl.constexpr, PADDED: tl.constexpr, NORM: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    slot, at = tl.load(slots + token).to(tl.int64), tl.load(positions + token)
    head, d = tl.arange(0, PADDED)[:, None], tl.arange(0, WIDTH)[None, :]
    partner = (d + WIDTH // 2) % WIDTH
    here = qkv + token * (HEADS + 2 * KEY_HEADS) * WIDTH + head * WIDTH
    said = head < HEADS + 2 * KEY_HEADS
    raw = tl.load(here + d, mask=said, other=0.0)
    x, other = raw.to(tl.float32), tl.load(here + partner, mask=said, other=0.0).to(tl.float32)
    if NORM:
        size = tl.rsqrt(tl.sum(x * x, axis=1) / WIDTH + epsilon)[:, None]
        own = tl.where(head < HEADS, tl.load(q_norm + d), tl.load(k_norm + d)).to(tl.float32)
        others = tl.where(head < HEADS, tl.load(q_norm + partner), tl.load(k_norm + partner)).to(tl.float32)
        x, other = x * size * own, other * size * others
    turn_cos = tl.load(cos + at * WIDTH + d)
    turn_sin = tl.load(sin + at * WIDTH + d) * tl.where(d < WIDTH // 2, -1.0, 1.0)
    turned = _turned(x, other, turn_cos, turn_sin).to(raw.dtype)
    key, value = head - HEADS, head - HEADS - KEY_HEADS
    is_key, is_value = (key >= 0) & (key < KEY_HEADS), (value >= 0) & (value < KEY_HEADS)
    tl.store(q_out + (token * HEADS + head) * WIDTH + d, turned, mask=head < HEADS)
    tl.store(k_out + (token * KEY_HEADS + key) * WIDTH + d, turned, mask=is_key)
    tl.store(keys + ((slot * KEY_HEADS + key) * capacity + at) * WIDTH + d, turned, mask=is_key)
    tl.store(values + ((slot * KEY_HEADS + value) * capacity + at) * WIDTH + d, raw, mask=is_value)


def place(
    qkv: Tensor, turns: tuple[Tensor, Tensor], cache: Tensor, slots: Tensor, positions: Tensor, heads: Heads,
    norms: Norms | None,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Turn the queries and keys of a stream and store keys and values: → q [T, Hq, D], k and v [T, Hkv, D]."""
    tokens, capacity = len(qkv), cache.shape[3]
    q = qkv.new_empty(tokens, heads.queries, heads.width)
    k = qkv.new_empty(tokens, heads.keys, heads.width)
    q_norm, k_norm = (norm.weight for norm in norms) if norms else (qkv, qkv)
    _place[(tokens,)](
        qkv, *turns, cache[0], cache[1], slots, positions, q, k, q_norm, k_norm,
        norms[0].variance_epsilon if norms else 0.0, capacity, heads.queries, heads.keys, heads.width,
        triton.next_power_of_2(heads.queries + 2 * heads.keys), norms is not None,
    )  # fmt: skip
    return q, k, qkv.view(tokens, -1, heads.width)[:, heads.queries + heads.keys :]


@triton.jit
def _scramble(x):
    x = x * -2048144789  # 0x85EBCA6B as a signed word
    x = x ^ (x >> 16)
    return x * -1028477387  # 0xC2B2AE35


@triton.jit
def _wait(words, key):
    noise = _scramble(words ^ key) >> 9  # 23 bits and a sign
    return -tl.log(noise.to(tl.float32) * 1.1920928955078125e-07 + (0.5 + 5.960464477539063e-08))


@triton.jit
def _weigh(
    logits, floats, sums, tops, best, vocabulary, parts, stride, HEAT: tl.constexpr, BLOCK: tl.constexpr,
    BLOCKS: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    begin(EARLY)
    row, part = tl.program_id(0), tl.program_id(1)
    token = part * BLOCK * BLOCKS + tl.arange(0, BLOCK * BLOCKS)
    real = token < vocabulary
    heat = tl.load(floats + row * stride + HEAT)
    logit = tl.load(logits + row.to(tl.int64) * vocabulary + token, mask=real, other=-float("inf")).to(tl.float32)
    scaled = logit / tl.where(heat == 0.0, 1.0, heat)
    top = tl.max(scaled, axis=0)
    # A part may hold no token at all that is allowed.
    mass = tl.where(scaled > -float("inf"), tl.exp(scaled - top), 0.0)
    out = row * parts + part
    tl.store(tops + out, top)
    tl.store(best + out, tl.minimum(part * BLOCK * BLOCKS + tl.argmax(scaled, axis=0), vocabulary - 1))
    tl.store(sums + out * BLOCKS + tl.arange(0, BLOCKS), tl.sum(tl.reshape(mass, [BLOCKS, BLOCK]), axis=1))


@triton.jit
def _settle(
    logits, sums, tops, best, tokens, blocks, sheet, floats, ends, said, logprobs, vocabulary, parts, count, stride,
    every, HEAT: tl.constexpr, KEYS: tl.constexpr, ENDS: tl.constexpr, PARTS: tl.constexpr, BLOCK: tl.constexpr,
    BLOCKS: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    begin(EARLY)
    row = tl.program_id(0)
    at, start = tl.load(sheet + row * stride + 1), tl.load(sheet + row * stride + 2)
    heat, key = tl.load(floats + row * stride + HEAT), tl.load(sheet + row * stride + KEYS + tl.maximum(at - start, 0))
    greedy = heat == 0.0
    heat = tl.where(greedy, 1.0, heat)

    part = tl.arange(0, PARTS)
    part_tops = tl.load(tops + row * parts + part, mask=part < parts, other=-float("inf"))
    top = tl.max(part_tops, axis=0)
    likeliest = tl.load(best + row * parts + tl.argmax(part_tops, axis=0))

    block = tl.arange(0, PARTS * BLOCKS)
    inside = block < count
    own_tops = tl.load(tops + row * parts + block // BLOCKS, mask=inside, other=-float("inf"))
    mass = tl.load(sums + row * parts * BLOCKS + block, mask=inside, other=0.0) * tl.exp(own_tops - top)
    total = tl.sum(mass, axis=0)
    waits = _wait(tl.load(blocks + block, mask=inside, other=0), key)
    chosen_block = tl.argmax(tl.where(inside, mass / waits, -1.0), axis=0)

    token = chosen_block * BLOCK + tl.arange(0, BLOCK)
    real = token < vocabulary
    line = logits + row.to(tl.int64) * vocabulary
    scaled = tl.load(line + token, mask=real, other=-float("inf")).to(tl.float32) / heat
    token_waits = _wait(tl.load(tokens + token, mask=real, other=0), key)
    drawn = chosen_block * BLOCK + tl.argmax(tl.where(real, tl.exp(scaled - top) / token_waits, -1.0), axis=0)
    said_token = tl.minimum(tl.where(greedy, likeliest, drawn), vocabulary - 1)
    logprob = tl.load(line + said_token).to(tl.float32) / heat - top - tl.log(total)
    if at >= 0:
        out = row * 2 * every + at - start
        tl.store(said + out, said_token)
        tl.store(logprobs + out + every, logprob)
        ended = tl.max((tl.load(ends + tl.arange(0, ENDS)) == said_token).to(tl.int32), axis=0)
        full = (at + 2 >= tl.load(sheet + row * stride + 3)).to(tl.int32)
        tl.store(sheet + row * stride, said_token)
        tl.store(sheet + row * stride + 1, tl.where(ended + full > 0, -1, at + 1))


def draw(logits: Tensor, sampler: Sampler, sheet: Tensor, ends: Tensor, said: Tensor, heat: int, keys: int) -> None:
    """Choose a token for every row of the sheet, as `Sampler` does, and write it down.

    `said` [R, 2·steps] takes ids, then log-probs; the row moves on to it, or to −1 if that was its last.
    """
    rows, vocabulary = logits.shape
    parts, stride, floats = triton.cdiv(vocabulary, BLOCK * BLOCKS), sheet.shape[1], sheet.view(torch.float32)
    sums, tops = torch.empty(rows, parts, BLOCKS, device=sheet.device), torch.empty(rows, parts, device=sheet.device)
    best = sheet.new_empty(rows, parts)
    _weigh[(rows, parts)](
        logits, floats, sums, tops, best, vocabulary, parts, stride, heat, BLOCK, BLOCKS, **early(logits),
    )  # fmt: skip
    _settle[(rows,)](
        logits, sums, tops, best, sampler.tokens, sampler.blocks, sheet, floats, ends, said,
        said.view(torch.float32), vocabulary, parts, len(sampler.blocks), stride, said.shape[1] // 2, heat, keys,
        len(ends), triton.next_power_of_2(parts), BLOCK, BLOCKS, **early(logits),
    )  # fmt: skip
