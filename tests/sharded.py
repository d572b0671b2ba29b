"""Learners on sharded models in two processes: `python -m tests.sharded FOLDER`.

FOLDER/cases.pt has the learners to build by name and their batches. The processes leave what they computed
in FOLDER: found-0.pt and found-1.pt, and checkpoints by name.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from coterie.algorithms.ppo import Ppo
from coterie.learners.distributed import process_group
from coterie.learners.learner import TorchLearner
from coterie.models.sharding import gather_like, local_shard
from coterie.types import Batch
from tests.learners import gradients, learner
from tests.several import together

LOSS = Ppo(clip=0.1, clip_high=0.3, kl=0.1, entropy=0.02, value_clip=0.3)


def fit(made: TorchLearner, batch: Batch) -> dict[str, float]:
    return made.fit(batch, LOSS.loss_weights(batch), LOSS.loss)


def checkpoint(made: TorchLearner, folder: Path) -> None:
    made.save(folder)
    state = made.state()
    if made.processes.is_main:
        torch.save(state, folder / "state.pt")
    made.processes.barrier()


def resumed(made: TorchLearner, folder: Path) -> TorchLearner:
    made.load(folder)
    made.restore(torch.load(folder / "state.pt"))
    return made


def whole_gradients(made: TorchLearner, batch: Batch) -> dict[str, Tensor]:
    found = gradients(made, batch, LOSS.loss_weights(batch), LOSS.loss)
    parameters = dict(zip(found, made.trained, strict=True))
    return {name: gather_like(part, parameters[name]) for name, part in found.items()}


def study(folder: Path, name: str, options: dict[str, Any], batches: list[Batch]) -> dict[str, Any]:
    """Gradients and readings of a fresh learner; then three steps, the last one also after a resume."""

    def make() -> TorchLearner:
        return learner(sharded=True, processes=process_group(), **options)

    first, *steps, last = batches
    made = make()
    held = sum(local_shard(parameter).numel() for parameter in made.base.model.parameters())
    read = made.logprobs(first), made.logprobs(first, reference=True), made.scores(first).values
    found: dict[str, Any] = {"held": held, "read": read, "gradients": whole_gradients(made, first)}
    made = make()
    found["metrics"] = [fit(made, batch) for batch in steps]
    checkpoint(made, folder / f"{name}-sharded")
    fit(made, last)
    found["weights"] = made.weights()
    again = resumed(make(), folder / f"{name}-sharded")
    fit(again, last)
    found["resumed"] = again.weights()
    other = resumed(make(), folder / f"{name}-one")
    fit(other, last)
    return {**found, "resumed from one": other.weights()}


def main(folder: Path) -> int:
    cases = torch.load(folder / "cases.pt", weights_only=False)
    found = {name: study(folder, name, *case) for name, case in cases.items()}
    torch.save(found, folder / f"found-{process_group().rank}.pt")
    return 0


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(json.dumps(together(lambda rank: main(Path(sys.argv[1])))))
