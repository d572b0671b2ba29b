"""A law of captured steps: kernel after kernel, they say what steps on a CPU say. On a GPU, see tests/gpu."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from coterie.engines.native import cache
from coterie.engines.native.engine import NativeEngine
from coterie.models.base import Base
from coterie.types import Sampling
from tests.kernels.place import ON_GPU, needs_triton, team
from tests.oracle import POLICIES, Request, ask, assert_same, random_ids

pytestmark = [needs_triton, pytest.mark.skipif(ON_GPU, reason="there the steps are captured in earnest")]
WAYS = (
    Sampling(5),
    Sampling(7, temperature=0),
    Sampling(4, temperature=0.7, top_p=0.8),
    Sampling(5, top_k=5),
    Sampling(3, stop=("a",)),
)


@pytest.fixture
def interpreted(monkeypatch: pytest.MonkeyPatch) -> Callable[[Base], NativeEngine]:
    """An engine that runs the steps of a GPU as they come."""
    from coterie.engines.native import graphs

    def made(base: Base) -> NativeEngine:
        monkeypatch.setattr(cache, "pair", lambda layer: (layer[0], layer[1]))  # keys lie as on a GPU
        monkeypatch.setattr(graphs, "capture", lambda step, pool: step)
        logits = base.logits
        monkeypatch.setattr(base, "logits", lambda hidden: logits(hidden).contiguous())
        engine = NativeEngine(base, POLICIES, rows=8)
        adapters = [name for name in POLICIES.values() if name]
        steps: Any = graphs.Graphs(base, engine.cache, engine.sampler, adapters)
        engine.steps, engine.seats.gathered = steps, steps.gathered
        return engine

    return made


@pytest.mark.parametrize("kind", ["llama", "qwen3"])
def test_the_steps_of_a_gpu_say_what_a_cpu_says(
    kind: str, tmp_path: Path, interpreted: Callable[[Base], NativeEngine]
) -> None:
    base, names = team(kind, tmp_path, "cpu"), list(POLICIES)
    asked: list[Request] = [
        (names[n % len(names)], random_ids(4 + 9 * n, n), n, WAYS[n % len(WAYS)]) for n in range(10)
    ]
    theirs = ask(NativeEngine(base, POLICIES), asked)
    assert_same(ask(interpreted(base), asked), theirs)
