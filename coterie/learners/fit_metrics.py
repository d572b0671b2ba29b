"""What a fit reports: one reduction for each microbatch on the device that learns, and one host sync at the end."""

from __future__ import annotations

import torch
from torch import Tensor

from coterie.learners.distributed import Processes
from coterie.types import Batch, Measure, Metrics, Scores, TokenMetrics

# kl_step: from the policy before this step's updates, seen just before this one
PER_TOKEN = ("entropy", "gap", "kl_step")
PEAKS = ("gap_max", "ratio_max")


class FitMetrics:
    """Sums over the parts of a batch; of a critic, which says no tokens, the loss alone."""

    def __init__(self, device: torch.device, speaks: bool, measure: Measure | None = None) -> None:
        self.speaks, self.measure = speaks, measure
        self.names = PER_TOKEN if measure is None else (*PER_TOKEN, *TokenMetrics._fields)
        self.peaks = PEAKS[:1] if measure is None else PEAKS
        self.sums = torch.zeros(1 + len(self.names), dtype=torch.float64, device=device)
        self.most = torch.zeros(len(self.peaks), device=device)

    @torch.no_grad()
    def add(self, cost: Tensor, scores: Scores, part: Batch) -> None:
        self.sums[0] += cost
        if self.speaks:
            off = (scores.logprobs - part.logprobs).abs()
            moved = part.old_logprobs - scores.logprobs
            measured = () if self.measure is None else self.measure(scores, part)
            self.sums[1:] += torch.stack([scores.entropy, off, moved, *measured]).sum(dim=1)
            self.most = torch.maximum(self.most, torch.stack([off, *measured[:1]]).amax(dim=1))

    def read(self, count: int, norm: Tensor, processes: Processes) -> Metrics:
        """The loss as it is, the others per token. Here the host waits for the device."""
        processes.add([self.sums])
        loss, *sums = torch.cat([self.sums, self.most, norm[None]]).tolist()
        metrics = {"loss": loss, "grad_norm": sums.pop()}
        if not self.speaks:
            return metrics
        means = {name: total / count for name, total in zip(self.names, sums, strict=False)}
        highest = [max(every) for every in zip(*processes.gather([sums[len(self.names) :]]), strict=True)]
        return metrics | means | dict(zip(self.peaks, highest, strict=True))
