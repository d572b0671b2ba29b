"""Dr. GRPO: GRPO without division by the deviation and by the response length."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from coterie.algorithms.group_estimator import Scale
from coterie.algorithms.grpo import Grpo
from coterie.rl.losses import Reduce


@dataclass(frozen=True, kw_only=True)
class DrGrpo(Grpo):
    """GRPO that divides neither by the group's deviation nor by the response's length, but by one fixed length.
    Where responses grow without getting better, or tasks that are almost always or never solved have too much weight.
    Costs what GRPO costs; `reduce_length` is required. (Dr. GRPO, arXiv 2503.20783)"""

    scale: Scale = "none"
    reduce: Reduce | None = "fixed"

    def problems(self, config: Any) -> Iterator[tuple[str, str]]:
        longest = max((config.sampling_of(role).max_tokens for role in config.roles), default=1)
        usual = f"is not given, and reduce: fixed divides by it; {longest} is usual, the most that a turn may say here"
        for key, message in super().problems(config):
            missing = key == "algorithm.reduce_length" and self.reduce_length is None
            yield key, usual if missing else message
