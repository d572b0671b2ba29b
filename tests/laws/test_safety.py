"""What keeps an update safe when sampler and learner differ, or weights have moved on."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from coterie.algorithms.base import Algorithm
from coterie.algorithms.turn_filters import clear_dropped_advantages, drop_stale
from coterie.learners.batch import make_batches
from coterie.types import Batch, Loss, Measure, Metrics, Scores
from tests.episodes import episode, random_episodes, turn
from tests.learners import gradients, learner, random_batch

Folder = Callable[[str], Path]


def test_the_sampler_s_rounding_never_reaches_the_weights(model_folder: Folder) -> None:
    algorithm = Algorithm()
    found = []
    for noise in (0.0, 0.3):
        made = learner(model_folder("llama"))
        batch = random_batch(made)
        batch.logprobs = batch.logprobs + noise
        batch.old_logprobs = batch.logprobs
        found.append(gradients(made, batch, algorithm.loss_weights(batch), algorithm.loss))
    assert all(torch.equal(a, b) for a, b in zip(found[0].values(), found[1].values(), strict=True))
    assert any(bool(a.any()) for a in found[0].values())


@pytest.mark.parametrize("epochs", [1, 2])
def test_tokens_weigh_as_much_as_the_learner_believes_in_them_up_to_a_limit(epochs: int) -> None:
    batch = make_batches(random_episodes(4), require_advantages=False)["policy"]
    part = batch.each(lambda column: column[batch.mask].double())
    draw = torch.Generator().manual_seed(0)
    new, part.old_logprobs, part.advantages = (
        torch.randn(len(part), generator=draw, dtype=torch.float64) for _ in range(3)
    )
    scores = Scores(new, new)
    plain, limited = Algorithm(epochs=epochs), Algorithm(epochs=epochs, truncate=1.5)
    old = new if epochs == 1 else part.old_logprobs
    weights = [min(math.exp(o - s), 1.5) for o, s in zip(old.tolist(), part.logprobs.tolist(), strict=True)]
    expected = plain.loss(scores, part) * torch.tensor(weights, dtype=torch.float64)
    torch.testing.assert_close(limited.loss(scores, part), expected)


@dataclass
class Drifts:
    """A learner that moves by a fixed distance with every fit."""

    by: float
    fits: int = 0
    frozen: bool = False
    version: int = 0

    def fit_together(self, jobs: Sequence[tuple[Any, Batch, Tensor, Loss, Measure]]) -> list[Metrics]:
        return [learner.fit(*job) for learner, *job in jobs]

    def fit(self, batch: Batch, weights: Tensor, loss: Loss, measure: Measure) -> Metrics:
        self.fits += 1
        return {"kl_step": self.by * (self.fits - 1), "logprob_gap": 0.0, "logprob_gap_max": 0.0}

    def logprobs(self, batch: Batch, reference: bool = False) -> Tensor:
        raise NotImplementedError

    def scores(self, batch: Batch) -> Scores:
        raise NotImplementedError


def test_a_policy_that_has_moved_too_far_stops_and_the_others_go_on() -> None:
    batch = make_batches(random_episodes(1), require_advantages=False)["policy"]
    learners = {"far": Drifts(0.2), "near": Drifts(0.01)}
    metrics = Algorithm(epochs=6, stop_kl=0.3).update(learners, {"far": batch, "near": batch}, random.Random(0), step=0)
    # 0, 0.2, 0.4: the third fit saw that it had gone too far
    assert (learners["far"].fits, learners["near"].fits) == (3, 6)
    assert (metrics["far/fits"], metrics["near/fits"]) == (3.0, 6.0)


def test_turns_of_other_weights_than_those_that_learn_are_left_out_and_counted() -> None:
    turns = [turn(policy="new"), turn(policy="old"), turn(policy="old")]
    for said, version in zip(turns, (7, 3, 6), strict=True):
        said.version, said.advantages = version, torch.ones(1)
    learners = {"new": Drifts(0.0, version=7), "old": Drifts(0.0, version=6)}
    assert drop_stale([episode(turns)], learners) == {"stale": 1.0}
    assert [said.dropped for said in turns] == [None, "stale", None]
    clear_dropped_advantages([episode(turns)])  # of an algorithm that judges what was dropped
    assert [said.advantages is None for said in turns] == [False, True, False]
