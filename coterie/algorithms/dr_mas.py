"""Dr. MAS: GRPO whose group statistics are always of one role."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from coterie.algorithms.grpo import Grpo


@dataclass(frozen=True, kw_only=True)
class DrMas(Grpo):
    """GRPO whose mean and deviation are always of one role's turns; a `group_by` that mixes roles is refused.
    For teams whose roles are rewarded on different scales, where shared statistics make gradients explode.
    Costs what GRPO costs; with GRPO's default `group_by` the two are the same. (Dr. MAS, arXiv 2602.08847)"""

    def problems(self, config: Any) -> Iterator[tuple[str, str]]:
        yield from super().problems(config)
        if "role" not in self.group_by:
            yield "algorithm.group_by", "lacks role, so roles would be compared with each other; Dr. MAS never does"
