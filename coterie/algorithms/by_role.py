"""Settings that differ from role to role: each role's turns are compared in its own way."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Self

import torch
from torch import Tensor

from coterie.algorithms.group import Baseline, Scale
from coterie.algorithms.peers import EMPTY, Peers
from coterie.limits import Count, Positive, Share
from coterie.rl.confidence import Gain
from coterie.rl.groups import Peer
from coterie.rl.losses import Reduce
from coterie.types import Batch, Episode, Metrics


@dataclass(frozen=True, kw_only=True)
class RoleSettings:
    """What is different for one role; what is null is as for all. Such a role is compared with no other."""

    peers: tuple[Peer, ...] | None = None
    baseline: Baseline | None = None
    decay: Share | None = None
    scale: Scale | None = None
    reduce: Reduce | None = None
    reduce_length: Count | None = None
    drop_constant: bool | None = None
    drop_cut: bool | None = None
    gain: Gain | None = None
    gain_alpha: Positive | None = None


@dataclass(frozen=True, kw_only=True)
class ByRole(Peers):
    """The estimator, with other settings for some roles."""

    roles: dict[str, RoleSettings] = field(default_factory=dict)  # what is different for some roles

    def problems(self, config: Any) -> Iterator[tuple[str, str]]:
        yield from super().problems(config)
        for role in self.roles:
            key = f'algorithm.roles."{role}"'
            if role not in config.roles:
                yield key, f"nobody is called so; the roles are {', '.join(config.roles)}"
                continue
            if self.roles[role].peers == ():
                yield f"{key}.peers", EMPTY
            yield from self.for_role(role).unfit(config, key)
            yield from ((f"{key}{option}", why) for option, why in self._idle(role))

    def _idle(self, role: str) -> Iterator[tuple[str, str]]:
        """Settings of a role that nothing would come of."""
        settings, own = self.roles[role], self.for_role(role)
        if settings == RoleSettings():
            yield "", "is empty: nothing is different for this role; leave it out"
        if own.reduce == "fixed" and own.reduce_length is None:
            yield ".reduce_length", "goes with reduce: fixed, which divides by it"
        if own.reduce != "fixed" and settings.reduce_length is not None:
            yield ".reduce_length", "has no effect without reduce: fixed, which divides by it"
        if own.baseline != "ema" and settings.decay is not None:
            yield ".decay", f"has no effect with baseline: {own.baseline}; it is of baseline: ema"

    @property
    def needs_entropy(self) -> bool:
        return super().needs_entropy or any(self.for_role(role).needs_entropy for role in self.roles)

    def for_role(self, role: str) -> Self:
        """The algorithm with the settings of this role for all."""
        if role not in self.roles:
            return self
        own = vars(self.roles[role])
        made = replace(self, roles={}, **{name: value for name, value in own.items() if value is not None})
        return made if "role" in made.peers else replace(made, peers=(*made.peers, "role"))

    def peers_of(self, role: str) -> tuple[Peer, ...]:
        return self.for_role(role).peers

    def compute_advantages(self, episodes: list[Episode], memory: dict[str, Any]) -> Metrics:
        samples = self.samples(episodes)
        parts = [self.judge([s for s in samples if s.turns[0].role not in self.roles], memory)]
        for role in self.roles:
            parts.append(self.for_role(role).judge([s for s in samples if s.turns[0].role == role], memory))
        return {name: sum(part[name] for part in parts) for name in parts[0]}

    def loss_weights(self, batch: Batch) -> Tensor:
        """What each token counts; with a `reduce` of its own, a role's count as if all were added up in that way."""
        weights = super().loss_weights(batch)
        for role in [role for role in self.roles if role in batch.roles]:
            theirs = batch.role == batch.roles.index(role)
            weights = torch.where(theirs, self.for_role(role).loss_weights(batch), weights)
        return weights
