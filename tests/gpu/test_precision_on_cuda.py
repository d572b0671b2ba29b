"""On a GPU `learning.precision` chooses between half and full precision, and both learn."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from coterie.config import load
from coterie.training.build import build
from coterie.training.loop import train
from tests.games import game

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize(
    ("precision", "dtype", "gap"),
    [("auto", torch.bfloat16, 0.05), ("bf16", torch.bfloat16, 0.05), ("fp32", torch.float32, 1e-4)],
)
def test_frozen_weights_and_products_are_as_precise_as_the_config_says(
    precision: str, dtype: torch.dtype, gap: float, tmp_path: Path, model_folder: Callable[[str], Path]
) -> None:
    learning = {"precision": precision}
    config = game(tmp_path, model_folder("llama"), learning=learning, steps=1, device="cuda")
    run = build(load(config), tmp_path / "run", console=False)
    train(run)
    run.log.close()
    learner = run.learners["doer"]
    assert {p.dtype for p in learner.base.model.parameters()} == {dtype}
    assert {p.dtype for p in learner.parameters().values()} == {torch.float32}
    assert learner.adapter is not None and all(pair.up.any() for pair in learner.adapter.pairs.values())
    first = json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[0])
    assert first["doer/logprob_gap"] < gap
