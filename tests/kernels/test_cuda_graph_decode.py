"""The kernels of the CUDA graph decoder, interpreted, sample what the eager decoder samples. On GPUs: tests/gpu."""

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
from coterie.kernels.varlen_attention import VarlenRows
from coterie.models.base import Base
from coterie.types import Sampling
from tests.kernels.device import ON_GPU, needs_triton, team
from tests.oracle import POLICIES, Request, ask, assert_same, random_ids

pytestmark = [needs_triton, pytest.mark.skipif(ON_GPU, reason="on a GPU the graphs are really captured")]
ROWS = 4  # fewer than there are requests: some wait, and the last steps have idle rows
WAYS = (
    Sampling(2),
    Sampling(4, temperature=0),
    Sampling(3, temperature=0.7, top_p=0.8),
    Sampling(2, top_k=5),
    Sampling(3, stop=("a",)),
)


def attended(q: Tensor, k: Tensor, v: Tensor, rows: VarlenRows, scale: float, window: int | None) -> Tensor:
    """Varlen attention row by row, instead of the flash kernel. Queries are the last tokens of a row's keys."""
    assert window is None
    found, spans = [], zip(pairwise(rows.cu_seqlens_q.tolist()), pairwise(rows.cu_seqlens_k.tolist()), strict=True)
    for queries, keys in spans:
        q1, k1, v1 = (x[slice(*span)].transpose(0, 1) for x, span in ((q, queries), (k, keys), (v, keys)))
        new, all_of_it = q1.shape[1], k1.shape[1]
        seen = torch.arange(all_of_it)[None, :] <= torch.arange(all_of_it - new, all_of_it)[:, None]
        out = F.scaled_dot_product_attention(q1[None], k1[None], v1[None], seen, scale=scale, enable_gqa=True)
        found.append(out[0].transpose(0, 1))
    return torch.cat(found)


@pytest.fixture
def interpreted(monkeypatch: pytest.MonkeyPatch) -> Callable[[Base], NativeEngine]:
    """An engine with the CUDA graph decoder, run kernel by kernel, and with flash prefill as in half precision."""
    from coterie.engines.native import cuda_graphs
    from coterie.kernels import top_p_top_k_triton

    def make(base: Base) -> NativeEngine:
        logits = base.logits
        monkeypatch.setattr(base, "logits", lambda hidden: logits(hidden).contiguous())
        monkeypatch.setattr(kv_cache, "keys_values", lambda layer: (layer[0], layer[1]))  # the memory layout of a GPU
        monkeypatch.setattr(kv_cache, "flash_attention", attended)
        monkeypatch.setattr(cuda_graphs, "capture", lambda step, pool: step)
        monkeypatch.setattr(cuda_graphs, "MIN_ROWS", ROWS)
        monkeypatch.setattr(top_p_top_k_triton, "BLOCK", 256)  # two loads for the vocabulary
        monkeypatch.setattr(
            cuda_graphs.CudaGraphDecoder, "prefill", torch.inference_mode()(cuda_graphs.CudaGraphDecoder._prefill)
        )
        engine = NativeEngine(base, POLICIES, rows=ROWS)
        decoder: Any = cuda_graphs.CudaGraphDecoder(
            base, engine.cache, engine.sampler, [name for name in POLICIES.values() if name]
        )
        engine.decoder, engine.slots.compact = decoder, decoder.compact
        return engine

    return make


@pytest.mark.parametrize("kind", ["llama", pytest.param("qwen3", marks=pytest.mark.slow)])
def test_the_cuda_graph_decoder_samples_what_the_eager_one_samples(
    kind: str, tmp_path: Path, interpreted: Callable[[Base], NativeEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    base, names = team(kind, tmp_path, "cpu"), list(POLICIES)
    first: list[Request] = [(names[n % 4], random_ids(4 + 17 * n, n), n, WAYS[n % len(WAYS)]) for n in range(6)]
    expected = ask(NativeEngine(base, POLICIES), first)
    later: list[Request] = [  # which continue from the cache
        (policy, [*prompt, *answer.ids, 9, 8, 7], seed, Sampling(2, temperature=0))
        for (policy, prompt, seed, _), answer in zip(first[3:], expected[3:], strict=True)
    ]
    expected_later = ask(NativeEngine(base, POLICIES), later)
    engine, continued = interpreted(base), []
    attend = kv_cache.flash_attention
    monkeypatch.setattr(
        kv_cache, "flash_attention", lambda q, k, *more: continued.append(len(k) > len(q)) or attend(q, k, *more)
    )
    assert_same(ask(engine, first), expected)
    assert continued and not any(continued)
    assert_same(ask(engine, later), expected_later)
    assert any(continued)
