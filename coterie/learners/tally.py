"""What a fit reports, added up on the device that learns, so that it is asked only once."""

from __future__ import annotations

import torch
from torch import Tensor

from coterie.processes import Processes
from coterie.types import Batch, Metrics, Scores

# kl_step: from the policy before this step's updates, seen just before this one
PER_TOKEN = ("entropy", "gap", "kl_step")


class Tally:
    """Sums over the parts of a batch; of a critic, which says no tokens, the loss alone."""

    def __init__(self, device: torch.device, speaks: bool) -> None:
        self.sums = torch.zeros(1 + len(PER_TOKEN), dtype=torch.float64, device=device)
        self.most, self.speaks = torch.zeros((), device=device), speaks

    @torch.no_grad()
    def add(self, cost: Tensor, scores: Scores, part: Batch) -> None:
        self.sums[0] += cost
        if self.speaks:
            off = (scores.logprobs - part.logprobs).abs()
            moved = part.old_logprobs - scores.logprobs
            self.sums[1:] += torch.stack([scores.entropy.sum(), off.sum(), moved.sum()])
            self.most = torch.maximum(self.most, off.max())

    def read(self, count: int, norm: Tensor, processes: Processes) -> Metrics:
        """The loss as it is, the others per token. Here the host waits for the device."""
        processes.add([self.sums])
        loss, *sums, most, length = torch.cat([self.sums, torch.stack([self.most, norm])]).tolist()
        metrics = {"loss": loss, "grad_norm": length}
        if not self.speaks:
            return metrics
        means = {name: total / count for name, total in zip(PER_TOKEN, sums, strict=True)}
        return metrics | means | {"gap_max": max(processes.gather([most]))}
