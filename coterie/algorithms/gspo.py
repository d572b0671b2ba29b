"""GSPO: GRPO with one length-normalised importance ratio per turn."""

from __future__ import annotations

from dataclasses import dataclass

from coterie.algorithms.grpo import Grpo
from coterie.limits import Count, Positive
from coterie.rl.losses import Level, Normalize


@dataclass(frozen=True, kw_only=True)
class Gspo(Grpo):
    """GRPO with one importance ratio per turn, the geometric mean over its tokens, clipped very tightly.
    For long turns and mixture-of-experts models, where the ratios of single tokens are noisy.
    Costs what GRPO costs, and a forward pass before the update for the old log-probs. (GSPO, arXiv 2507.18071)"""

    level: Level = "turn"
    normalize: Normalize = "token"
    clip: Positive = 3e-4
    clip_high: Positive | None = 4e-4
    minibatches: Count = 4
