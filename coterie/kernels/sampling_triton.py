"""Sampling in Triton, inside a CUDA graph: the exponential race of `sampling`, with the same noise and tokens."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from coterie.kernels.pdl_launch import pdl_options, pdl_wait
from coterie.kernels.sampling import BLOCK, Sampler

BLOCKS = 8  # vocabulary blocks per program


@triton.jit
def _scramble(x):
    x = x * -2048144789  # 0x85EBCA6B as a signed word
    x = x ^ (x >> 16)
    return x * -1028477387  # 0xC2B2AE35


@triton.jit
def _exponential_noise(words, key):
    noise = _scramble(words ^ key) >> 9  # 23 bits and a sign
    return -tl.log(noise.to(tl.float32) * 1.1920928955078125e-07 + (0.5 + 5.960464477539063e-08))


@triton.jit
def _block_mass(
    logits, floats, sums, tops, best, vocabulary, parts, stride, TEMPERATURE: tl.constexpr, BLOCK: tl.constexpr,
    BLOCKS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    pdl_wait(PDL)
    row, part = tl.program_id(0), tl.program_id(1)
    token = part * BLOCK * BLOCKS + tl.arange(0, BLOCK * BLOCKS)
    real = token < vocabulary
    temperature = tl.load(floats + row * stride + TEMPERATURE)
    logit = tl.load(logits + row.to(tl.int64) * vocabulary + token, mask=real, other=-float("inf")).to(tl.float32)
    scaled = logit / tl.where(temperature == 0.0, 1.0, temperature)
    top = tl.max(scaled, axis=0)
    # Top-p or top-k may have masked every token of this program.
    mass = tl.where(scaled > -float("inf"), tl.exp(scaled - top), 0.0)
    out = row * parts + part
    tl.store(tops + out, top)
    tl.store(best + out, tl.minimum(part * BLOCK * BLOCKS + tl.argmax(scaled, axis=0), vocabulary - 1))
    tl.store(sums + out * BLOCKS + tl.arange(0, BLOCKS), tl.sum(tl.reshape(mass, [BLOCKS, BLOCK]), axis=1))


@triton.jit
def _draw_token(
    logits, sums, tops, best, tokens, blocks, state, floats, end_ids, out_ids, out_logprobs, vocabulary, parts, count,
    stride, steps, TEMPERATURE: tl.constexpr, RNG_KEYS: tl.constexpr, END_IDS: tl.constexpr, PARTS: tl.constexpr,
    BLOCK: tl.constexpr, BLOCKS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    pdl_wait(PDL)
    row = tl.program_id(0)
    at, start = tl.load(state + row * stride + 1), tl.load(state + row * stride + 2)
    temperature = tl.load(floats + row * stride + TEMPERATURE)
    key = tl.load(state + row * stride + RNG_KEYS + tl.maximum(at - start, 0))
    greedy = temperature == 0.0
    temperature = tl.where(greedy, 1.0, temperature)

    part = tl.arange(0, PARTS)
    part_tops = tl.load(tops + row * parts + part, mask=part < parts, other=-float("inf"))
    top = tl.max(part_tops, axis=0)
    argmax = tl.load(best + row * parts + tl.argmax(part_tops, axis=0))

    block = tl.arange(0, PARTS * BLOCKS)
    inside = block < count
    own_tops = tl.load(tops + row * parts + block // BLOCKS, mask=inside, other=-float("inf"))
    mass = tl.load(sums + row * parts * BLOCKS + block, mask=inside, other=0.0) * tl.exp(own_tops - top)
    total = tl.sum(mass, axis=0)
    block_noise = _exponential_noise(tl.load(blocks + block, mask=inside, other=0), key)
    chosen_block = tl.argmax(tl.where(inside, mass / block_noise, -1.0), axis=0)

    token = chosen_block * BLOCK + tl.arange(0, BLOCK)
    real = token < vocabulary
    line = logits + row.to(tl.int64) * vocabulary
    scaled = tl.load(line + token, mask=real, other=-float("inf")).to(tl.float32) / temperature
    token_noise = _exponential_noise(tl.load(tokens + token, mask=real, other=0), key)
    drawn = chosen_block * BLOCK + tl.argmax(tl.where(real, tl.exp(scaled - top) / token_noise, -1.0), axis=0)
    chosen = tl.minimum(tl.where(greedy, argmax, drawn), vocabulary - 1)
    logprob = tl.load(line + chosen).to(tl.float32) / temperature - top - tl.log(total)
    if at >= 0:
        out = row * 2 * steps + at - start
        tl.store(out_ids + out, chosen)
        tl.store(out_logprobs + out + steps, logprob)
        ended = tl.max((tl.load(end_ids + tl.arange(0, END_IDS)) == chosen).to(tl.int32), axis=0)
        full = (at + 2 >= tl.load(state + row * stride + 3)).to(tl.int32)
        tl.store(state + row * stride, chosen)
        tl.store(state + row * stride + 1, tl.where(ended + full > 0, -1, at + 1))


def sample(
    logits: Tensor, sampler: Sampler, decode_state: Tensor, end_ids: Tensor, outputs: Tensor, temperature: int,
    rng_keys: int,
) -> None:  # fmt: skip
    """Sample a token for every row of the decode state, as `Sampler` does, and advance the row's position by one.

    The position becomes −1 (idle) after an end token or at the row's limit. outputs [R, 2·steps] gets the ids, then the
    log-probs. `temperature` and `rng_keys` are columns of the state.
    """
    rows, vocabulary = logits.shape
    parts, stride = triton.cdiv(vocabulary, BLOCK * BLOCKS), decode_state.shape[1]
    floats = decode_state.view(torch.float32)
    sums, tops = floats.new_empty(rows, parts, BLOCKS), floats.new_empty(rows, parts)
    best = decode_state.new_empty(rows, parts)
    _block_mass[(rows, parts)](
        logits, floats, sums, tops, best, vocabulary, parts, stride, temperature, BLOCK, BLOCKS, **pdl_options(logits),
    )  # fmt: skip
    _draw_token[(rows,)](
        logits, sums, tops, best, sampler.tokens, sampler.blocks, decode_state, floats, end_ids, outputs,
        outputs.view(torch.float32), vocabulary, parts, len(sampler.blocks), stride, outputs.shape[1] // 2, temperature,
        rng_keys, len(end_ids), triton.next_power_of_2(parts), BLOCK, BLOCKS, **pdl_options(logits),
    )  # fmt: skip
