"""The sampler draws from the right distribution, with noise that is independent of the batch."""

from __future__ import annotations

from itertools import product

import pytest
import torch
from torch import Tensor
from transformers import TopKLogitsWarper, TopPLogitsWarper

from coterie.kernels import sampling as module
from coterie.kernels.sampling import BLOCK, Sampler, blockwise_argmax, exponential_noise, rng_key, rng_keys
from coterie.kernels.top_p_top_k import FIRST, top_k_top_p
from coterie.seeds import stable_hash
from coterie.types import Sampling
from tests.oracle import distribution

VOCABULARY = 50


def keys(*draws: tuple[int, int]) -> Tensor:
    return torch.tensor([rng_key(seed, position) for seed, position in draws], dtype=torch.int32)


def random_logits(rows: int, vocabulary: int = VOCABULARY, seed: int = 0) -> Tensor:
    return 2 * torch.randn(rows, vocabulary, generator=torch.Generator().manual_seed(seed))


def test_noise_depends_on_seed_position_and_token_only() -> None:
    draws = [(stable_hash("run", seed), position) for seed, position in product(range(4), range(4))]
    words, more = Sampler(VOCABULARY).tokens, Sampler(30 * VOCABULARY)
    together = exponential_noise(words, keys(*draws))
    backwards = exponential_noise(words, keys(*draws[::-1])).flip(0)
    wider = exponential_noise(more.tokens, keys(*draws))[:, :VOCABULARY]
    alone = torch.cat([exponential_noise(words, keys(draw)) for draw in draws])
    assert torch.equal(together, backwards) and torch.equal(together, wider) and torch.equal(together, alone)
    assert not set(more.blocks.tolist()) & set(more.tokens.tolist())  # the noise of a block is not that of a token
    assert len(together.flatten().unique()) > 0.99 * together.numel()  # and on each of the three


def test_noise_is_uniform_and_draws_are_uncorrelated() -> None:
    """As uniform numbers: their mean, their spread, and the correlation of neighbours in each of the three."""
    seeds, positions, vocabulary = 40, 40, 64
    draws = list(product((stable_hash("noise", seed) for seed in range(seeds)), range(positions)))
    noise = (
        exponential_noise(Sampler(vocabulary).tokens, keys(*draws))
        .double()
        .neg()
        .exp()
        .view(seeds, positions, vocabulary)
    )
    assert float(noise.min()) > 0 and float(noise.max()) < 1
    centered, few = noise - 0.5, 4 / noise.numel() ** 0.5  # four standard deviations of a mean, up to its unit
    assert abs(float(centered.mean())) < few * 0.289
    assert abs(float(centered.square().mean()) - 1 / 12) < few * 0.075
    for dimension in range(3):
        neighbours = centered * centered.roll(1, dimension)
        assert abs(float(neighbours.mean())) < few / 12


@pytest.mark.parametrize("along", ["seeds", "positions"])
@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_tokens_are_drawn_as_often_as_they_are_likely(along: str, temperature: float) -> None:
    draws, vocabulary = 20_000, 2 * BLOCK + 100
    logits = torch.full((1, vocabulary), -30.0)
    likely = torch.arange(12) * 101  # in three blocks, the last of them shorter
    logits[0, likely] = random_logits(1, 12)[0]
    key = keys(*((stable_hash(n), 3) if along == "seeds" else (7, n) for n in range(draws)))
    ids, _ = Sampler(vocabulary)(logits.expand(draws, -1), torch.full((draws,), temperature), key)
    expected = draws * (logits[0] / temperature).softmax(-1)[likely]
    counts = ids.bincount(minlength=vocabulary)
    assert int(counts.sum()) == int(counts[likely].sum())
    chi_square = float(((counts[likely] - expected) ** 2 / expected).sum())
    assert chi_square < 31.3  # 11 degrees of freedom: exceeded once in a thousand seeds


@pytest.mark.parametrize("temperature", [0.3, 1.0, 1.7])
def test_logprobs_are_those_of_the_tempered_distribution(temperature: float) -> None:
    logits = random_logits(30)
    ids, logprobs = Sampler(VOCABULARY)(
        logits.clone(), torch.full((30,), temperature), keys(*((n, 0) for n in range(30)))
    )
    expected = (logits / temperature).log_softmax(-1).gather(1, ids[:, None])[:, 0]
    torch.testing.assert_close(logprobs, expected, atol=1e-5, rtol=0)
    assert not torch.equal(ids, logits.argmax(-1))


def test_temperature_zero_is_argmax_with_log_probs_at_temperature_one() -> None:
    """Also in a batch with sampled rows, and for any seed."""
    logits, temperature = random_logits(20), torch.tensor([0.0, 1.0] * 10)
    ids, logprobs = Sampler(VOCABULARY)(logits.clone(), temperature, keys(*((n, n) for n in range(20))))
    assert torch.equal(ids[::2], logits.argmax(-1)[::2])
    expected = logits.log_softmax(-1).gather(1, ids[:, None])[:, 0]
    torch.testing.assert_close(logprobs, expected, atol=1e-5, rtol=0)


TRUNCATED = [
    Sampling(temperature=temperature, top_p=top_p, top_k=top_k)
    for temperature, top_p, top_k in product([0.0, 0.6, 1.0, 2.0], [1.0, 0.9, 0.3, 1e-6], [0, 1, 5, 49, 400])
]


def test_masked_tokens_are_never_drawn_and_the_rest_sums_to_one() -> None:
    logits = random_logits(len(TRUNCATED))
    temperature, top_p = (torch.tensor([getattr(how, name) for how in TRUNCATED]) for name in ("temperature", "top_p"))
    kept = top_k_top_p(logits.clone(), top_p, torch.tensor([how.top_k for how in TRUNCATED]), temperature)
    expected = torch.stack([distribution(row, how) for row, how in zip(logits, TRUNCATED, strict=True)])
    tempered = kept / torch.where(temperature == 0, 1.0, temperature)[:, None]
    torch.testing.assert_close(tempered.softmax(-1), expected, atol=1e-6, rtol=0)
    for seed in range(20):
        ids, logprobs = Sampler(VOCABULARY)(
            kept.clone(), temperature, keys(*((seed, n) for n in range(len(TRUNCATED))))
        )
        torch.testing.assert_close(logprobs, expected.gather(1, ids[:, None])[:, 0].log(), atol=1e-5, rtol=0)


def test_top_k_and_top_p_together_equal_those_of_transformers() -> None:
    logits = random_logits(40)
    ours = top_k_top_p(logits, torch.full((40,), 0.8), torch.full((40,), 6), torch.full((40,), 0.7))
    tempered = logits / 0.7
    ids = torch.zeros(40, 1, dtype=torch.long)
    theirs = TopPLogitsWarper(0.8)(ids, TopKLogitsWarper(6)(ids, tempered))
    assert torch.equal(ours.isinf(), theirs.isinf())
    alone = TopPLogitsWarper(0.8)(ids, tempered)
    assert not torch.equal(alone.isinf(), theirs.isinf())  # so the order matters here


@pytest.mark.parametrize("top_k", [0, 7, FIRST + 5])
def test_a_flat_distribution_is_truncated_as_the_definition_says(top_k: int) -> None:
    """Far more tokens than are sorted at first."""
    logits, how = 0.1 * random_logits(3, 3 * FIRST), Sampling(top_p=0.9, top_k=top_k)
    kept = top_k_top_p(logits, torch.full((3,), 0.9), torch.full((3,), top_k), torch.ones(3))
    expected = torch.stack([distribution(row, how) for row in logits])
    assert (kept.isfinite().sum(dim=1) - (expected > 0).sum(dim=1)).abs().max() <= 1  # sums are rounded
    torch.testing.assert_close(kept.softmax(-1), expected, atol=1e-3, rtol=0)


def test_ties_with_the_last_kept_token_are_kept() -> None:
    logits = torch.tensor([[0.0, 2.0, 1.0, 1.0, 1.0, -1.0]]).expand(3, -1)
    kept = top_k_top_p(logits, torch.tensor([1.0, 0.6, 1.0]), torch.tensor([2, 0, 0]), torch.ones(3))
    assert kept.isfinite().tolist() == [[False, True, True, True, True, False]] * 2 + [[True] * 6]


@pytest.mark.parametrize("chunk", [1, 3 * BLOCK, 20 * BLOCK])
def test_chunking_does_not_change_the_draws(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor does the memory layout of the logits."""
    vocabulary = 5 * BLOCK + 7
    logits, temperature = random_logits(7, vocabulary), torch.tensor([1.0, 0.0, 0.5, 1.0, 2.0, 0.0, 1.0])
    key = keys(*((n, 1) for n in range(7)))
    whole = Sampler(vocabulary)(logits, temperature, key)
    monkeypatch.setattr(module, "CHUNK", chunk)
    for other in (logits, logits.t().contiguous().t()):
        pieces = Sampler(vocabulary)(other, temperature, key)
        assert torch.equal(whole[0], pieces[0])
        torch.testing.assert_close(whole[1], pieces[1], atol=1e-5, rtol=0)


@pytest.mark.parametrize("vocabulary", [1, 50, BLOCK, 3 * BLOCK, 3 * BLOCK + 1])
def test_blockwise_argmax_is_argmax(vocabulary: int) -> None:
    logits = random_logits(40, vocabulary)
    assert torch.equal(blockwise_argmax(logits), logits.argmax(dim=1))


def test_rng_keys_are_the_rng_key_of_each_draw() -> None:
    seeds, positions = [0, 5, 2**63 - 1, stable_hash("a")], [0, 3, 17, 100_000]
    wanted = [[rng_key(seed, at + n) for n in range(7)] for seed, at in zip(seeds, positions, strict=True)]
    assert rng_keys(seeds, positions, 7).tolist() == wanted
