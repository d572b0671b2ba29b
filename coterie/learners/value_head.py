"""The value head: a linear layer on a model's hidden states that predicts the return before each token."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class ValueHead(nn.Linear):
    """Hidden states → values. It starts at zero, so that the first values are zero everywhere."""

    def __init__(self, width: int) -> None:
        super().__init__(width, 1)
        nn.init.zeros_(self.weight)
        nn.init.zeros_(self.bias)

    def forward(self, hidden: Tensor) -> Tensor:
        """[N, width] → [N]. In float32 also under autocast: returns differ by less than bfloat16 resolves."""
        with torch.autocast(hidden.device.type, enabled=False):
            return super().forward(hidden.float())[:, 0]
