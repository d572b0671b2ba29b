"""Laws of learning together: policies that share a pass over their base learn what each would learn alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from coterie.algorithms.base import Algorithm
from coterie.config import Learning
from coterie.learners.learner import TorchLearner
from coterie.models.base import Base
from coterie.models.lora import Adapter
from coterie.types import Batch
from tests.learners import random_batch

Folder = Callable[[str], Path]
TARGETS = {"a": ("q_proj", "v_proj", "down_proj"), "b": ("q_proj", "o_proj", "up_proj")}


def pair(base: Base, **learning: Any) -> list[TorchLearner]:
    """Two policies on one base; one of them has a value head."""
    made = []
    for seed, (name, targets) in enumerate(TARGETS.items()):
        adapter = Adapter(name, 4, 8.0, targets).attach(base.layers, seed)
        value_lr = 1e-2 if name == "b" else None
        made.append(TorchLearner(name, base, adapter, 1e-2, Learning(**learning), 10, value_lr=value_lr))
    return made


def taught(folder: Path, together: bool, count: int = 2, **learning: Any) -> tuple[list[dict[str, Tensor]], Any, int]:
    """The weights after some fits, their metrics, and how often the base ran."""
    base = Base(folder)
    learners = pair(base, **learning)
    batches = [random_batch(learner, seed) for seed, learner in enumerate(learners)]
    runs: list[int] = []
    true = base.hidden
    base.hidden = lambda tokens, *given: runs.append(len(tokens)) or true(tokens, *given)  # type: ignore[method-assign,func-returns-value]
    algorithm, metrics = Algorithm(entropy=0.02), []
    for _ in range(count):
        jobs = [
            (m, b, algorithm.loss_weights(b), algorithm.loss, algorithm.token_metrics)
            for m, b in zip(learners, batches, strict=True)
        ]
        metrics.append(learners[0].fit_together(jobs) if together else [job[0].fit(*job[1:]) for job in jobs])
    weights = [{name: p.detach().clone() for name, p in learner.parameters().items()} for learner in learners]
    return weights, metrics, len(runs)


@pytest.mark.parametrize("budget", [100_000, 60], ids=["one load", "many loads"])
@pytest.mark.parametrize("checkpointing", [False, True], ids=["kept", "checkpointed"])
def test_policies_that_learn_together_learn_what_each_learns_alone(
    budget: int, checkpointing: bool, model_folder: Folder
) -> None:
    how: dict[str, Any] = {"microbatch_tokens": budget, "checkpointing": checkpointing}
    (ours, said, shared), (theirs, heard, alone) = (taught(model_folder("llama"), on, **how) for on in (True, False))
    for mine, expected in zip(ours, theirs, strict=True):
        for name, weight in mine.items():
            torch.testing.assert_close(weight, expected[name], atol=2e-4, rtol=0)  # Adam's step is 1e-2
    for mine, expected in zip(said, heard, strict=True):
        for one, other in zip(mine, expected, strict=True):
            assert one == pytest.approx(other, rel=1e-3, abs=1e-5)
    assert shared == 2 if budget == 100_000 else shared < alone


def test_whole_models_never_share_a_pass(model_folder: Folder) -> None:
    learners = [TorchLearner(n, Base(model_folder("llama")), None, 1e-3, Learning(), 10) for n in "ab"]
    batch: Batch = random_batch(learners[0])
    jobs = [
        (learner, batch, Algorithm().loss_weights(batch), Algorithm().loss, Algorithm().token_metrics)
        for learner in learners
    ]
    metrics = learners[0].fit_together(jobs)
    assert metrics[0] == metrics[1] and [learner.version for learner in learners] == [1, 1]
