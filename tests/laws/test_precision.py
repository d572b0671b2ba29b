"""`learning.precision` sets the dtype of matmuls and frozen weights; trained weights are in fp32."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from coterie.config import ConfigError, load
from coterie.training.build import build
from coterie.training.loop import Run, train
from tests.games import game

Folder = Callable[[str], Path]


def trained(folder: Path, model: Path, precision: str, **changes: Any) -> tuple[Run, list[dict[str, float]]]:
    folder.mkdir()
    config = game(folder, model, learning={"precision": precision}, steps=1, **changes)
    run = build(load(config), folder / "run", console=False)
    train(run)
    run.log.close()
    return run, [json.loads(line) for line in (folder / "run" / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("kind", ["llama", "gemma3"])  # with a forward of our own, and by the model's own modules
def test_in_bf16_frozen_weights_are_half_and_an_adapter_is_not(kind: str, tmp_path: Path, model_folder: Folder) -> None:
    run, metrics = trained(tmp_path / "bf16", model_folder(kind), "bf16")
    learner = run.learners["doer"]
    assert {p.dtype for p in learner.base.model.parameters()} == {torch.bfloat16}
    assert {p.dtype for p in learner.parameters().values()} == {torch.float32}
    assert learner.adapter is not None and all(pair.up.any() for pair in learner.adapter.pairs.values())
    assert learner.optimizer is not None
    kept = [state[name] for state in learner.optimizer.state.values() for name in ("exp_avg", "exp_avg_sq")]
    assert {tensor.dtype for tensor in kept} == {torch.float32}
    assert 0 < metrics[0]["doer/logprob_gap"] < 0.05


def test_full_fine_tuning_keeps_fp32_weights_and_computes_in_half(tmp_path: Path, model_folder: Folder) -> None:
    policies = {name: {"model": str(model_folder("llama")), "lora": None, "lr": 0.01} for name in ("thinker", "doer")}
    run, metrics = trained(tmp_path / "whole", model_folder("llama"), "bf16", policies=policies)
    learner = run.learners["doer"]
    assert {p.dtype for p in learner.parameters().values()} == {torch.float32} and learner.base.bf16
    exact, others = trained(tmp_path / "exact", model_folder("llama"), "fp32", policies=policies)
    assert not exact.learners["doer"].base.bf16
    assert others[0]["doer/logprob_gap"] < 1e-5 < metrics[0]["doer/logprob_gap"] < 0.05


def test_fp32_is_the_default_on_a_cpu(tmp_path: Path, model_folder: Folder) -> None:
    learned = []
    for precision in ("auto", "fp32"):
        run, _ = trained(tmp_path / precision, model_folder("llama"), precision)
        assert next(run.learners["doer"].base.model.parameters()).dtype == torch.float32
        learned.append(run.learners["doer"].parameters())
    assert all(torch.equal(learned[0][name], learned[1][name]) for name in learned[0])


def test_another_precision_is_refused_with_the_valid_ones(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"learning\.precision: got the text 'fp16', expected auto, bf16 or fp32"):
        load(game(tmp_path, tmp_path), ["learning.precision=fp16"])
