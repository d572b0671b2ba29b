"""A learner on a tiny model whose gradients can be looked at."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from coterie.config import Learning
from coterie.learners.batch import make_batches
from coterie.learners.distributed import SINGLE_PROCESS, Processes
from coterie.learners.learner import TorchLearner
from coterie.models.base import Base
from coterie.models.lora import Adapter
from coterie.types import Batch
from tests.episodes import random_episodes

TARGETS = ("q_proj", "v_proj", "o_proj", "down_proj")


class KeepsGradients(torch.optim.SGD):
    """Takes no step, but remembers the gradients it was given."""

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        self.kept = [p.grad.clone() for group in self.param_groups for p in group["params"]]


def learner(
    folder: Path,
    lora: bool = True,
    head: bool = False,
    reference: bool = False,
    sharded: bool = False,
    processes: Processes = SINGLE_PROCESS,
    bf16: bool = False,
    **learning: Any,
) -> TorchLearner:
    """One policy on a model of its own; its adapter and its value head are no longer at zero. `bf16` as in training:
    the weights of a whole model stay in fp32."""
    base = Base(folder, dtype=torch.bfloat16 if bf16 and lora else torch.float32, sharded=sharded, bf16=bf16)
    adapter = Adapter("policy", 4, 8.0, TARGETS).attach(base.layers, seed=3) if lora else None
    frozen_copy = Base(folder, sharded=sharded, bf16=bf16) if reference and not lora else None
    value_lr = 1e-2 if head else None
    made = TorchLearner(
        "policy", base, adapter, 1e-2, Learning(**learning), 10, value_lr=value_lr, reference=frozen_copy,
        processes=processes,
    )  # fmt: skip
    _disturb(made)
    return made


@torch.no_grad()
def _disturb(made: TorchLearner) -> None:
    draw = torch.Generator().manual_seed(5)
    moved = list(made.value_head.parameters()) if made.value_head else []
    moved += [pair.up for pair in made.adapter.pairs.values()] if made.adapter else []
    for parameter in moved:
        parameter.add_(0.1 * torch.randn(parameter.shape, generator=draw))


def random_batch(made: TorchLearner, seed: int = 0, count: int = 6) -> Batch:
    """Random conversations with credit, sampled by a policy that is a little off the learner's."""
    batch = make_batches(random_episodes(seed, count), require_advantages=False)["policy"]
    draw = torch.Generator().manual_seed(seed)

    def near(column: Tensor, by: float) -> Tensor:
        return torch.where(batch.mask, column + by * torch.randn(len(batch), generator=draw), 0.0)

    true = made.logprobs(batch)
    batch.logprobs = batch.old_logprobs = near(true, 0.2)
    batch.ref_logprobs = near(true, 0.5)
    batch.advantages, batch.returns, batch.values = (near(torch.zeros(len(batch)), 1.0) for _ in range(3))
    return batch


def gradients(made: TorchLearner, batch: Batch, weights: Tensor, loss: Any) -> dict[str, Tensor]:
    """What one fit gives each parameter, by name."""
    made.learning = Learning(**{**vars(made.learning), "clip_norm": 1e9})
    assert made.optimizer is not None
    kept = KeepsGradients(made.optimizer.param_groups, lr=1.0)
    made.optimizer = kept  # type: ignore[assignment]
    made.fit(batch, weights, loss)
    names = [*made.parameters(), *(["head.weight", "head.bias"] if made.value_head else [])]
    return dict(zip(names, kept.kept, strict=True))
