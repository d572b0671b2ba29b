"""On a GPU the learner computes what it computes on a CPU, up to half precision, without host syncs."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from coterie.algorithms.base import Algorithm
from coterie.config import Learning
from coterie.kernels import varlen_attention
from coterie.learners.learner import TorchLearner
from coterie.models.attention import Packed, Span
from coterie.models.base import Base
from coterie.models.lora import Adapter
from coterie.types import Batch
from tests.learners import TARGETS, gradients, learner, random_batch

pytestmark = pytest.mark.gpu
Folder = Callable[[str], Path]
SPANS = [Span(0, 70), Span(70, 3, ((0, 70),)), Span(73, 130, ((0, 60), (70, 2))), Span(203, 9), Span(212, 64)]


def attended(device: str, dtype: torch.dtype, window: int | None, heads: int, key_heads: int) -> list[Tensor]:
    size, width, draw = 276, 64, torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(n, size, width, generator=draw).to(device, dtype) for n in (heads, key_heads, key_heads))
    for x in (q, k, v):
        x.requires_grad_()
    out = Packed(SPANS, device).attend(0, q, k, v, width**-0.5, window)
    by = torch.randn(out.shape, generator=draw).to(device, dtype)
    return [x.float().cpu() for x in (out, *torch.autograd.grad((out * by).sum(), [q, k, v]))]


@pytest.mark.parametrize("window", [None, 20])
@pytest.mark.parametrize(("heads", "key_heads"), [(4, 4), (8, 2)])
def test_the_flash_kernel_attends_as_padded_rows_in_full_precision(
    window: int | None, heads: int, key_heads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    called = []
    true = varlen_attention.flash_attention
    monkeypatch.setattr(varlen_attention, "flash_attention", lambda *given: called.append(1) or true(*given))
    half = attended("cuda", torch.bfloat16, window, heads, key_heads)
    assert called
    full = attended("cpu", torch.float32, window, heads, key_heads)
    for ours, theirs in zip(half, full, strict=True):
        assert float(((ours - theirs).norm() / theirs.norm()).detach()) < 0.02


def on_gpu(folder: Path, lora: bool, **learning: object) -> TorchLearner:
    """The learner of `tests.learners.learner`, on the GPU and in the precision that a run has there."""
    base = Base(folder, "cuda", torch.bfloat16 if lora else torch.float32)
    adapter = Adapter("policy", 4, 8.0, TARGETS).attach(base.layers, seed=3) if lora else None
    made = TorchLearner("policy", base, adapter, 1e-2, Learning(**learning), 10)  # type: ignore[arg-type]
    draw = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for pair in adapter.pairs.values() if adapter else ():
            pair.up.add_(0.1 * torch.randn(pair.up.shape, generator=draw).cuda())
    return made


@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3", "gemma3"])
@pytest.mark.parametrize("lora", [True, False], ids=["lora", "whole"])
@pytest.mark.parametrize("checkpointing", [False, True], ids=["kept", "checkpointed"])
def test_gradients_on_a_gpu_are_those_of_a_cpu(
    kind: str, lora: bool, checkpointing: bool, model_folder: Folder
) -> None:
    exact = learner(model_folder(kind), lora)
    batch = random_batch(exact, seed=1)
    loss, weights = Algorithm(entropy=0.02).loss, Algorithm().loss_weights(batch)
    made = on_gpu(model_folder(kind), lora, checkpointing=checkpointing)
    assert float((made.logprobs(batch) - exact.logprobs(batch))[batch.mask].abs().mean()) < 0.05
    theirs, ours = gradients(exact, batch, weights, loss), gradients(made, batch, weights, loss)
    flat = [torch.cat([g[name].flatten().float().cpu() for name in theirs]) for g in (ours, theirs)]
    assert float(torch.nn.functional.cosine_similarity(*flat, dim=0)) > 0.99
    assert float(flat[0].norm() / flat[1].norm()) == pytest.approx(1, abs=0.05)


@pytest.mark.parametrize("checkpointing", [False, True], ids=["kept", "checkpointed"])
def test_rows_without_an_advantage_have_no_gradient_on_a_gpu_either(checkpointing: bool, model_folder: Folder) -> None:
    made = on_gpu(model_folder("llama"), lora=True, checkpointing=checkpointing)
    batch = random_batch(made, seed=2)
    batch.advantages = torch.where(batch.row % 3 > 0, 0.0, batch.advantages)
    algorithm = Algorithm()
    found = [
        gradients(made, batch, of(batch), algorithm.loss) for of in (algorithm.loss_weights, algorithm.gradient_weights)
    ]
    flat = [torch.cat([gradient.flatten().float() for gradient in each.values()]) for each in found]
    assert float((flat[0] - flat[1]).norm() / flat[0].norm()) < 0.01


def host_syncs(made: TorchLearner, batch: Batch) -> int:
    """The number of host syncs in one fit."""
    weights = Algorithm().loss_weights(batch)
    torch.cuda.set_sync_debug_mode("warn")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        made.fit(batch, weights, Algorithm().loss)
    torch.cuda.set_sync_debug_mode("default")
    return sum("synchroniz" in str(warning.message) for warning in caught)


def test_the_number_of_host_syncs_does_not_grow_with_microbatches(model_folder: Folder) -> None:
    batch = random_batch(learner(model_folder("llama")), seed=2)
    found = []
    for budget in (100_000, 40):
        made = on_gpu(model_folder("llama"), True, microbatch_tokens=budget)
        made.fit(batch, Algorithm().loss_weights(batch), Algorithm().loss)  # the optimiser's first step makes its state
        found.append(host_syncs(made, batch))
    assert found[0] == found[1] <= 3


@pytest.mark.parametrize("vocabulary", [1000, 49152, 151936])
def test_the_log_prob_kernels_agree_with_the_reference(vocabulary: int) -> None:
    from coterie.kernels import (  # here, for only CUDA builds of PyTorch bring Triton
        logprob_entropy,
        logprob_entropy_triton,
    )

    draw = torch.Generator().manual_seed(0)
    logits = (3 * torch.randn(33, vocabulary, generator=draw)).bfloat16().cuda()
    tokens = torch.randint(0, vocabulary, (33,), generator=draw).cuda()
    temperature, first, second = (0.5 + torch.rand(3, 33, generator=draw)).cuda()
    expected = logprob_entropy.forward(logits, tokens, temperature)
    for ours, theirs in zip(logprob_entropy_triton.forward(logits, tokens, temperature), expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)
    for by_entropy in (None, second):
        given = (tokens, temperature, expected[2], expected[1], first, by_entropy)
        theirs = logprob_entropy.backward(logits, *given, logits.dtype)
        torch.testing.assert_close(
            logprob_entropy_triton.backward(logits.clone(), *given, logits.dtype), theirs, rtol=2e-2, atol=1e-6
        )
