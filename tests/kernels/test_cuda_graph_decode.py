"""A law of captured steps: kernel after kernel, they say what steps on a CPU say. On a GPU, see tests/gpu."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from coterie.engines.native import kv_cache
from coterie.engines.native.engine import NativeEngine
from coterie.kernels.varlen_attention import Ragged
from coterie.models.base import Base
from coterie.types import Sampling
from tests.kernels.device import ON_GPU, needs_triton, team
from tests.oracle import POLICIES, Request, ask, assert_same, random_ids

pytestmark = [needs_triton, pytest.mark.skipif(ON_GPU, reason="there the steps are captured in earnest")]
WAYS = (
    Sampling(3),
    Sampling(5, temperature=0),
    Sampling(4, temperature=0.7, top_p=0.8),
    Sampling(3, top_k=5),
    Sampling(3, stop=("a",)),
)


def attended(q: Tensor, k: Tensor, v: Tensor, rows: Ragged, scale: float, window: int | None) -> Tensor:
    """In place of the flash kernel, row by row. Queries are the last tokens of a row's keys."""
    assert window is None
    found, spans = [], zip(pairwise(rows.q_ends.tolist()), pairwise(rows.k_ends.tolist()), strict=True)
    for queries, keys in spans:
        q1, k1, v1 = (x[slice(*span)].transpose(0, 1) for x, span in ((q, queries), (k, keys), (v, keys)))
        new, all_of_it = q1.shape[1], k1.shape[1]
        seen = torch.arange(all_of_it)[None, :] <= torch.arange(all_of_it - new, all_of_it)[:, None]
        out = F.scaled_dot_product_attention(q1[None], k1[None], v1[None], seen, scale=scale, enable_gqa=True)
        found.append(out[0].transpose(0, 1))
    return torch.cat(found)


@pytest.fixture
def interpreted(monkeypatch: pytest.MonkeyPatch) -> Callable[[Base], NativeEngine]:
    """An engine that takes the steps of a GPU, operation by operation, and reads prompts as in half precision."""
    from coterie.engines.native import cuda_graphs

    def made(base: Base) -> NativeEngine:
        logits = base.logits
        monkeypatch.setattr(base, "logits", lambda hidden: logits(hidden).contiguous())
        monkeypatch.setattr(kv_cache, "pair", lambda layer: (layer[0], layer[1]))  # keys lie as on a GPU
        monkeypatch.setattr(kv_cache, "flash", attended)
        monkeypatch.setattr(cuda_graphs, "capture", lambda step, pool: step)
        monkeypatch.setattr(cuda_graphs.Graphs, "read", torch.inference_mode()(cuda_graphs.Graphs._read))
        engine = NativeEngine(base, POLICIES, rows=8)
        steps: Any = cuda_graphs.Graphs(
            base, engine.cache, engine.sampler, [name for name in POLICIES.values() if name]
        )
        engine.steps, engine.seats.gathered = steps, steps.gathered
        return engine

    return made


@pytest.mark.parametrize("kind", ["llama", "qwen3"])
def test_the_steps_of_a_gpu_say_what_a_cpu_says(
    kind: str, tmp_path: Path, interpreted: Callable[[Base], NativeEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    base, names = team(kind, tmp_path, "cpu"), list(POLICIES)
    first: list[Request] = [(names[n % 4], random_ids(4 + 9 * n, n), n, WAYS[n % len(WAYS)]) for n in range(10)]
    said = ask(NativeEngine(base, POLICIES), first)
    later: list[Request] = [  # which go on from what the cache holds
        (policy, [*prompt, *answer.ids, 9, 8, 7], seed, Sampling(2, temperature=0))
        for (policy, prompt, seed, _), answer in zip(first[:5], said, strict=False)
    ]
    then = ask(NativeEngine(base, POLICIES), later)
    engine, went_on = interpreted(base), []
    attend = kv_cache.flash
    monkeypatch.setattr(kv_cache, "flash", lambda q, k, *more: went_on.append(len(k) > len(q)) or attend(q, k, *more))
    assert_same(ask(engine, first), said)
    assert went_on and not any(went_on)
    assert_same(ask(engine, later), then)
    assert any(went_on)
