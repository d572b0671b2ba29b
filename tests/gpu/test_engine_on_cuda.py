"""The native engine on CUDA: CUDA graphs sample what a CPU samples."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from coterie.bench.shapes import batch_of
from coterie.config import Learning
from coterie.engines.native.engine import NativeEngine
from coterie.learners.learner import TorchLearner
from coterie.learners.logprobs import ChosenLogprobs
from coterie.models.base import Base
from coterie.types import Sample, Sampling
from tests.kernels.device import SHAPES, team
from tests.oracle import POLICIES, Oracle, Request, ask, assert_same, random_ids

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")]
WAYS = (
    Sampling(40),
    Sampling(45, temperature=0),
    Sampling(9, temperature=0.7, top_p=0.8),
    Sampling(30, stop=("a",)),
    Sampling(20, top_k=5),
)


def requests(count: int) -> list[Request]:
    names = list(POLICIES)
    return [(names[n % len(names)], random_ids(5 + 7 * (n % 13), n), n, WAYS[n % len(WAYS)]) for n in range(count)]


@pytest.mark.parametrize("kind", list(SHAPES))
@pytest.mark.parametrize("rows", [3, 64])
def test_a_gpu_samples_what_a_cpu_samples(kind: str, rows: int, tmp_path: Path) -> None:
    here, there = team(kind, tmp_path, "cuda"), team(kind, tmp_path, "cpu")
    engine = NativeEngine(here, POLICIES, rows=rows)
    assert type(engine.decoder).__name__ == "CudaGraphDecoder"
    ours, theirs = ask(engine, requests(40)), ask(NativeEngine(there, POLICIES), requests(40))
    assert_same(ours, theirs)
    assert_same(ask(engine, requests(40)), theirs)  # again, by replaying the graphs


def test_prefill_ahead_makes_no_host_sync_while_steps_run(tmp_path: Path) -> None:
    engine = NativeEngine(team("llama", tmp_path, "cuda", torch.bfloat16), POLICIES, rows=16)
    prefill_ahead, ready = engine._prefill_ahead, []

    def without_waiting() -> None:
        torch.cuda.set_sync_debug_mode("error")
        prefill_ahead()
        torch.cuda.set_sync_debug_mode("default")
        ready.append(sum(row.slot >= 0 for row in engine.waiting))

    ask(engine, requests(40))  # compiles the kernels
    engine._prefill_ahead = without_waiting  # type: ignore[method-assign]
    try:
        ask(engine, [(policy, prompt[::-1], seed, how) for policy, prompt, seed, how in requests(40)])
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert max(ready) == engine.ahead


@pytest.mark.parametrize("kind", list(SHAPES))
def test_greedy_is_what_hugging_face_generates(kind: str, tmp_path: Path) -> None:
    base = team(kind, tmp_path, "cuda")
    engine, prompts = NativeEngine(base, POLICIES), [random_ids(3 + 5 * n, n) for n in range(20)]
    for policy in POLICIES:
        samples = ask(engine, [(policy, prompt, 0, Sampling(20, temperature=0)) for prompt in prompts])
        expected = Oracle(base, POLICIES[policy]).greedy(prompts, 20)
        assert [sample.ids for sample in samples] == expected


def test_weights_changed_in_place_are_used(tmp_path: Path) -> None:
    base = team("llama", tmp_path, "cuda")
    engine, request = NativeEngine(base, POLICIES), requests(1)[0]
    requested: list[Request] = [("b", request[1], 1, Sampling(20, temperature=0))]
    before = ask(engine, requested)
    with torch.no_grad():
        for layer in base.layers.values():
            if "b" in layer.pairs:
                layer.pairs["b"].up.mul_(-3)
    engine.weights_changed("b", 1)
    after = ask(engine, requested)
    assert before[0].ids != after[0].ids
    assert_same(after, ask(NativeEngine(base, POLICIES), requested))


def test_a_conversation_continues_from_its_cache(tmp_path: Path) -> None:
    base = team("llama", tmp_path, "cuda")
    engine = NativeEngine(base, POLICIES)
    prompt = random_ids(60, seed=1)
    first = ask(engine, [("a", prompt, 1, Sampling(20))])[0]
    longer = [*prompt, *first.ids, *random_ids(9, seed=2)]
    again = ask(engine, [("a", longer, 2, Sampling(20, temperature=0))])[0]
    fresh = ask(NativeEngine(base, POLICIES), [("a", longer, 2, Sampling(20, temperature=0))])[0]
    assert again.ids == fresh.ids


@pytest.mark.parametrize("kind", list(SHAPES))
def test_in_half_precision_sampler_and_learner_agree_on_log_probs(kind: str, tmp_path: Path) -> None:
    """Flash prefill is used in half precision: for new prompts, continued ones, and ones with a common prefix."""
    base = team(kind, tmp_path, "cuda", torch.bfloat16)
    engine = NativeEngine(base, POLICIES, rows=16)
    for policy, adapter in POLICIES.items():
        common = random_ids(40, seed=7)
        fresh = [random_ids(5 + 7 * n, n) for n in range(12)] + [[*common, *random_ids(9, seed=n)] for n in range(4)]
        samples = ask(engine, [(policy, prompt, n, Sampling(24)) for n, prompt in enumerate(fresh)])
        longer = [[*prompt, *sample.ids, *random_ids(6, seed=1)] for prompt, sample in zip(fresh, samples, strict=True)]
        again = ask(engine, [(policy, prompt, n, Sampling(24)) for n, prompt in enumerate(longer)])
        learned = learner_logprobs(base, adapter, [*fresh, *longer], [*samples, *again])
        sampled = torch.tensor([logprob for sample in [*samples, *again] for logprob in sample.logprobs])
        assert float((learned - sampled).abs().mean()) < 0.1


def learner_logprobs(base: Base, adapter: str | None, prompts: list[list[int]], samples: list[Sample]) -> torch.Tensor:
    """The log-probs of the samples, as a learner on this base computes them."""
    batch = batch_of([(tuple(prompt), sample.ids) for prompt, sample in zip(prompts, samples, strict=True)])
    learner = TorchLearner("policy", base, None, 1e-4, Learning(), 1, frozen=True)
    out = torch.zeros(len(batch))
    with torch.no_grad():
        for micro in learner.microbatches(batch):
            with learner.autocast():
                hidden = base.hidden(micro.tokens, micro.positions, micro.layout, [(0, len(micro.tokens), adapter)])
                tokens, temperature = (c.to(base.device)[micro.index] for c in (batch.tokens, batch.temperature))
                logprobs, _ = ChosenLogprobs(base)(hidden[micro.source], tokens, temperature)
                out[micro.index.cpu()] = logprobs.float().cpu()
    return out[batch.mask]
