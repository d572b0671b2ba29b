"""HAPPO: sequential updates; each policy's advantages are scaled by the ratios of those updated before it."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from coterie.algorithms.base import Chain
from coterie.algorithms.ppo import Ppo
from coterie.limits import AboveOne
from coterie.rl.losses import ratio_of
from coterie.types import Batch, Learner, Metrics


@dataclass(frozen=True, kw_only=True)
class Happo(Ppo):
    """MAPPO with sequential updates in random order: advantages are scaled by the ratios of policies updated before.
    For roles on separate policies that must fit together; on one shared policy it is MAPPO.
    Costs one more forward pass for every policy but the last. (arXiv 2109.11251; HARL, arXiv 2304.09870)"""

    max_factor: AboveOne = 10.0  # the factor is clamped between this and one over it

    chain: ClassVar[Chain] = "role"
    central_critic: ClassVar[bool] = True
    not_in_advantage: ClassVar[frozenset[str]] = Ppo.not_in_advantage | {"max_factor"}

    def problems(self, config: Any) -> Iterator[tuple[str, str]]:
        yield from super().problems(config)
        learning = [name for name, policy in config.policies.items() if not policy.frozen]
        if len(learning) < 2 and self.max_factor != type(self).max_factor:
            yield "algorithm.max_factor", "has no effect: one policy trains, and no other is updated before it"

    @property
    def needs_old_logprobs(self) -> bool:
        return True  # for the factor

    def update(
        self, learners: Mapping[str, Learner], batches: Mapping[str, Batch], rng: random.Random, step: int
    ) -> Metrics:
        order = self.policies_to_update(learners, batches, step)
        rng.shuffle(order)
        updated: list[tuple[Batch, Tensor]] = []  # each updated policy's batch, and its log-probs after the update
        metrics: Metrics = {}
        for place, policy in enumerate(order):
            learner, batch = learners[policy], batches[policy]
            factor = log_factor(batch, updated)
            corrected = replace(batch, advantages=batch.advantages * ratio_of(self.clamped(factor)))
            fitted = self.fit_policies([learner], [corrected], rng)[0] | self._factor_metrics(factor[batch.mask])
            metrics |= {f"{policy}/{key}": value for key, value in fitted.items()}
            if place + 1 < len(order):
                updated.append((batch, learner.logprobs(batch)))
        return metrics

    def clamped(self, log_factor: Tensor) -> Tensor:
        """Clamp to ±log(max_factor): the product over many tokens is unbounded, and a few episodes would dominate."""
        most = math.log(self.max_factor)
        return log_factor.clamp(-most, most)

    def _factor_metrics(self, log_factor: Tensor) -> Metrics:
        held = self.clamped(log_factor)
        return {"factor": float(ratio_of(held).mean()), "factor_held": float((held != log_factor).float().mean())}


def log_factor(batch: Batch, updated: list[tuple[Batch, Tensor]]) -> Tensor:
    """Σ log π_new/π_old over the other roles' turns in the same episode, of policies already updated: [T]."""
    total = torch.zeros_like(batch.advantages)
    for done, logprobs in updated:
        mask = done.mask
        log_ratios = (logprobs - done.old_logprobs)[mask]
        total += _sum_of_others(log_ratios, done.episode[mask], done.role[mask], batch.episode, batch.role)
    return total


def _sum_of_others(log_ratios: Tensor, episode: Tensor, role: Tensor, at_episode: Tensor, at_role: Tensor) -> Tensor:
    """For each of M tokens, the sum of the N log-ratios in its episode that belong to other roles: [N] → [M]."""
    roles = 1 + int(torch.cat([role, at_role]).max())
    episodes = 1 + int(torch.cat([episode, at_episode]).max())
    by_role = torch.zeros(episodes * roles, dtype=torch.float64)
    by_role.index_add_(0, episode * roles + role, log_ratios.double())
    others = by_role.view(episodes, roles).sum(1)[at_episode] - by_role[at_episode * roles + at_role]
    return others.to(log_ratios.dtype)
