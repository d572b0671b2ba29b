"""Learning with values: how those of a head or a critic are fitted, and when policies begin to learn from them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any, ClassVar

from torch import Tensor

from coterie.algorithms.base import Algorithm
from coterie.limits import Count, CountFromZero, Positive
from coterie.rl.advantages import first_of_turn
from coterie.rl.losses import value_loss
from coterie.types import Batch, Scores


@dataclass(frozen=True, kw_only=True)
class Valued(Algorithm):
    """What all algorithms share that learn what was to be expected."""

    value_weight: Positive = 0.5  # of a value head's loss beside its policy's
    value_clip: Positive | None = None
    value_huber: Positive | None = None  # an error beyond this counts linearly
    value_lr: Positive = 1e-3  # of the value head; the trunk moves at its own rate
    value_fits: Count = 1  # optimiser steps a step of critics that are not on a policy's trunk
    warmup: CountFromZero = 0  # steps in which only such critics learn

    needs_values: ClassVar[bool] = True
    not_in_advantage: ClassVar[frozenset[str]] = Algorithm.not_in_advantage | {
        "value_weight",
        "value_clip",
        "value_huber",
        "value_lr",
        "value_fits",
        "warmup",
    }

    def problems(self, config: Any) -> Iterator[tuple[str, str]]:
        yield from super().problems(config)
        set_by_hand = {f.name for f in fields(self) if getattr(self, f.name) != f.default}
        unused = _unused(self, has_critics=bool(config.critics) or self.central_critic)
        yield from ((f"algorithm.{key}", unused[key]) for key in unused if key in set_by_hand)
        if self.warmup >= config.steps:
            yield "algorithm.warmup", f"is {self.warmup} in a run of steps={config.steps}: no policy would ever learn"

    def trains_policies(self, step: int) -> bool:
        return step >= self.warmup

    def loss(self, scores: Scores, batch: Batch) -> Tensor:
        loss = super().loss(scores, batch)
        return loss if scores.values is None else loss + self.value_weight * self.value_loss(scores, batch)

    def value_loss(self, scores: Scores, batch: Batch) -> Tensor:
        """How wrong the values are, on a policy's trunk or of a critic: one number per token.

        A whole turn has one value, said before its first token, and how wrong that is stands at each of its tokens:
        then it counts as much as the turn does.
        """
        values, old = scores.values, batch.values
        assert values is not None
        if self.level == "turn":
            values, old = first_of_turn(values, batch.turn), first_of_turn(old, batch.turn)
        return value_loss(values, old, batch.returns, self.value_clip, self.value_huber)


def _unused(it: Valued, has_critics: bool) -> dict[str, str]:
    """Options of values that nothing would come of, and why."""
    unused: dict[str, str] = {}
    if has_critics:
        unused["value_weight"] = "has no effect with critics of their own, whose loss stands alone"
    else:
        unused["value_fits"] = "needs `critics`: a value head learns with its policy, as often as that does"
        unused["warmup"] = "needs `critics`: a value head learns with its policy, and would wait with it"
    if it.value_fits == 1 if has_critics else it.single_update:
        unused["value_clip"] = "has no effect with one optimiser step a step: the value is still the old one"
    return unused
