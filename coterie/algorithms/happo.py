"""HAPPO: policies learn one after the other, and each reckons with how the ones before it have moved."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from coterie.algorithms.mappo import Mappo
from coterie.limits import AboveOne
from coterie.rl.losses import ratio_of
from coterie.rl.sequential import others_moved
from coterie.types import Batch, Learner, Metrics


@dataclass(frozen=True, kw_only=True)
class Happo(Mappo):
    """MAPPO that updates policies in random order; a turn counts by how much likelier those before made the rest.
    For roles on policies of their own that must fit together; on one shared policy it is MAPPO.
    Costs one more forward for every policy but the last. (arXiv 2109.11251; HARL, arXiv 2304.09870)"""

    max_factor: AboveOne = 10.0  # the factor is held between this and one over it

    not_in_advantage: ClassVar[frozenset[str]] = Mappo.not_in_advantage | {"max_factor"}

    def problems(self, config: Any) -> Iterator[tuple[str, str]]:
        yield from super().problems(config)
        learning = [name for name, policy in config.policies.items() if not policy.frozen]
        if len(learning) < 2 and self.max_factor != type(self).max_factor:
            yield "algorithm.max_factor", "has no effect: one policy learns, and there is no other that moves before it"

    @property
    def needs_old_logprobs(self) -> bool:
        return True  # for the factor; the policy's own loss does as in every other algorithm

    def update(
        self, learners: Mapping[str, Learner], batches: Mapping[str, Batch], rng: random.Random, step: int
    ) -> Metrics:
        order = self.policies_to_update(learners, batches, step)
        rng.shuffle(order)
        updated: list[tuple[Batch, Tensor]] = []  # what each policy so far said, and its log-probs since its update
        metrics: Metrics = {}
        for place, policy in enumerate(order):
            learner, batch = learners[policy], batches[policy]
            moved = log_factor(batch, updated)
            weighed = replace(batch, advantages=batch.advantages * ratio_of(self.held(moved)))
            trained = self.fit_policies([learner], [weighed], rng)[0]
            metrics |= {f"{policy}/{key}": value for key, value in (trained | self._report(moved[batch.mask])).items()}
            if place + 1 < len(order):
                updated.append((batch, learner.logprobs(batch)))
        return metrics

    def held(self, moved: Tensor) -> Tensor:
        """Many tokens that each moved a little are a factor without bounds: a few episodes would be the whole batch."""
        most = math.log(self.max_factor)
        return moved.clamp(-most, most)

    def _report(self, moved: Tensor) -> Metrics:
        held = self.held(moved)
        return {"factor": float(ratio_of(held).mean()), "factor_held": float((held != moved).float().mean())}


def log_factor(batch: Batch, updated: list[tuple[Batch, Tensor]]) -> Tensor:
    """Σ log π_new/π_old over the turns, of other roles and the same episode, whose policies have been updated: [T]."""
    total = torch.zeros_like(batch.advantages)
    for done, logprobs in updated:
        said = done.mask
        moved = (logprobs - done.old_logprobs)[said]
        total += others_moved(moved, done.episode[said], done.role[said], batch.episode, batch.role)
    return total
