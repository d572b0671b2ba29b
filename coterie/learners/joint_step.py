"""One optimizer step of each of several policies; adapters on one base share its forward and backward passes.

A fit accumulates the gradients of its microbatches. Rows whose loss weights are all zero have no gradient: they are run
forward only, for the metrics. Metrics are reduced on the device, with one host sync at the end.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from coterie.learners.distributed import Processes
from coterie.learners.packing import Microbatch, concatenate, filler
from coterie.models.attention import to_device_async
from coterie.models.lora_routing import Segment
from coterie.rl.validate import require_per_token
from coterie.types import Batch, Loss, Measure, Metrics, Scores, TokenMetrics

if TYPE_CHECKING:
    from coterie.learners.learner import TorchLearner

# kl_step: the KL from the policy before the step's first update to the current one, estimated by k1
PER_TOKEN = ("entropy", "logprob_gap", "kl_step")
PEAKS = ("logprob_gap_max", "ratio_max")


class FitMetrics:
    """Sums and maxima over the microbatches of a fit; for a critic, which has no log-probs, the loss alone."""

    def __init__(self, device: torch.device, is_critic: bool, measure: Measure | None = None) -> None:
        self.is_critic, self.measure = is_critic, measure
        self.names = PER_TOKEN if measure is None else (*PER_TOKEN, *TokenMetrics._fields)
        self.peaks = PEAKS[:1] if measure is None else PEAKS
        self.sums = torch.zeros(2 + len(self.names), dtype=torch.float64, device=device)  # loss and tokens first
        self.maxima = torch.zeros(len(self.peaks), device=device)

    @torch.no_grad()
    def add(self, loss: Tensor, scores: Scores, part: Batch) -> None:
        self.sums[0] += loss
        if self.is_critic:
            return
        gap = (scores.logprobs - part.logprobs).abs()
        kl_step = part.old_logprobs - scores.logprobs
        measured = () if self.measure is None else self.measure(scores, part)
        self.sums[1] += len(gap)
        self.sums[2:] += torch.stack([scores.entropy, gap, kl_step, *measured]).sum(dim=1)
        self.maxima = torch.maximum(self.maxima, torch.stack([gap, *measured[:1]]).amax(dim=1))

    def read(self, norm: Tensor, processes: Processes) -> Metrics:
        """The loss as a sum, as it is weighted already; the others as means per token. Syncs host and device."""
        processes.all_reduce([self.sums])
        loss, tokens, *sums = torch.cat([self.sums, self.maxima, norm[None]]).tolist()
        metrics = {"loss": loss, "grad_norm": sums.pop()}
        if self.is_critic:
            return metrics
        means = {name: total / max(tokens, 1) for name, total in zip(self.names, sums, strict=False)}
        highest = [max(every) for every in zip(*processes.all_gather([sums[len(self.names) :]]), strict=True)]
        return metrics | means | dict(zip(self.peaks, highest, strict=True))


class FitJob:
    """One policy's part of a joint step: minimize Σ weights·loss over its batch."""

    def __init__(
        self, learner: TorchLearner, batch: Batch, weights: Tensor, loss: Loss, measure: Measure | None = None
    ) -> None:
        assert learner.optimizer is not None, f"{learner.policy} is frozen"
        learner.optimizer.zero_grad(set_to_none=True)
        self.learner, self.batch, self.loss = learner, batch, loss
        self.has_gradient = None if learner.base.sharded else tokens_with_gradient(batch, weights)
        self.on_device, self.weights = learner.on_device(batch), to_device_async(weights, learner.base.device)
        self.metrics = FitMetrics(learner.base.device, learner.is_critic, measure)
        self.tokens = None if learner.recorded is None else torch.zeros(2, len(batch), device=learner.base.device)

    def microbatches(self, with_gradient: bool) -> Iterator[Microbatch]:
        """The microbatches of the rows that have a gradient, or of the others."""
        if self.has_gradient is not None:
            yield from self.learner.microbatches(self.batch, self.has_gradient == with_gradient)
        elif with_gradient:
            yield from self.learner.microbatches(self.batch)

    def microbatch_loss(self, micro: Microbatch, hidden: Tensor) -> Tensor:
        """The weighted loss of one microbatch from its hidden states: []."""
        if not len(micro.index):  # a filler, whose gradients are zero
            return hidden.sum() * 0
        part = self.on_device.each(lambda column: column[micro.index])
        scores = self.learner.scores_of(hidden[micro.source], part)
        token_loss = self.loss(scores, part)
        require_per_token(self.loss, token_loss, scores, len(micro.index))
        loss = (token_loss * self.weights[micro.index]).sum()
        self.metrics.add(loss, scores, part)
        if self.tokens is not None:
            self.tokens[:, micro.index] = torch.stack([scores.logprobs, scores.entropy]).detach().float()
        return loss

    def finish(self) -> Metrics:
        """Take the optimizer step and read the metrics."""
        norm = self.learner.optimizer_step()
        self._record()
        return self.metrics.read(norm, self.learner.processes) | {"lr": self.learner.current_lr}

    def _record(self) -> None:
        """Write each turn's log-probs and entropies of this pass to `learner.recorded`, unless an earlier pass did."""
        if self.tokens is None or self.learner.recorded is None:
            return
        self.learner.processes.all_reduce_tokens([self.tokens])
        mask = self.batch.mask
        turns, sizes = torch.unique_consecutive(self.batch.turn[mask], return_counts=True)
        for turn, part in zip(turns.tolist(), self.tokens.cpu()[:, mask].split(sizes.tolist(), dim=1), strict=True):
            self.learner.recorded.setdefault(turn, part)


def tokens_with_gradient(batch: Batch, weights: Tensor) -> Tensor | None:
    """True for the tokens of rows with a loss weight that is not zero: [T]. None, for all rows, if each row has one or
    none has: without any backward pass the optimizer would see no gradient instead of a zero one."""
    rows = torch.zeros(batch.rows).index_add(0, batch.row, weights.abs().float()) > 0
    return rows[batch.row] if rows.any() and not rows.all() else None


def fit_together(jobs: Sequence[FitJob]) -> list[Metrics]:
    """Run the jobs' microbatches in shared passes. Policies share no trained weights, so each gets its own gradient."""
    for members in _passes(jobs):
        with _routed(members):
            total = _loss(members)
            if total.requires_grad:  # a filler's loss does not if the trunk is frozen
                total.backward()
    with torch.no_grad():
        for members in _own_passes(jobs, with_gradient=False):
            with _routed(members):
                _loss(members)
    return [job.finish() for job in jobs]


Members = Sequence[tuple["FitJob", Microbatch]]  # of one pass


@contextmanager
def _routed(members: Members) -> Iterator[None]:
    """Route each member's tokens to its adapter. Around `backward` too: gradient checkpointing reruns the layers."""
    learner = members[0][0].learner
    with learner.base.routing.on(_segments(members)), learner.autocast():
        yield


def _segments(members: Members) -> list[Segment]:
    ends = list(accumulate(len(micro.tokens) for _, micro in members))
    return [(end - len(m.tokens), end, job.learner.adapter_name) for end, (job, m) in zip(ends, members, strict=True)]


def _loss(members: Members) -> Tensor:
    """The sum of the members' losses, from one forward pass: []."""
    base, joint = members[0][0].learner.base, concatenate([micro for _, micro in members])
    # The trunk runs without gradients if only value heads are trained.
    with torch.set_grad_enabled(torch.is_grad_enabled() and any(job.learner.trains_trunk for job, _ in members)):
        hidden = base.hidden(joint.tokens, joint.positions, joint.layout, _segments(members))
    parts = hidden.split([len(micro.tokens) for _, micro in members])
    losses = [job.microbatch_loss(micro, part) for (job, micro), part in zip(members, parts, strict=True)]
    return torch.stack(losses).sum()


def _passes(jobs: Sequence[FitJob]) -> Iterator[list[tuple[FitJob, Microbatch]]]:
    """This process's passes. Those of sharded models are in lockstep with the other processes, whose collectives must
    match: model by model, padded with fillers to the same number."""
    if not any(job.learner.base.sharded for job in jobs):
        yield from _own_passes(jobs)
        return
    for base in dict.fromkeys(job.learner.base for job in jobs):
        own = [job for job in jobs if job.learner.base is base]
        yield from own[0].learner.processes.pad(list(_own_passes(own)), [(own[0], filler(base.device))])


def _own_passes(jobs: Sequence[FitJob], with_gradient: bool = True) -> Iterator[list[tuple[FitJob, Microbatch]]]:
    """Microbatches of policies on one base model, grouped into passes within the token budget: of the rows that have a
    gradient, or of the others."""
    open_passes: list[list[tuple[FitJob, Microbatch]]] = []
    for job in jobs:
        for micro in job.microbatches(with_gradient):
            fitting = [members for members in open_passes if _fits(members, job, micro)]
            if len(jobs) == 1:
                yield [(job, micro)]
            elif fitting:
                fitting[0].append((job, micro))
            else:
                open_passes.append([(job, micro)])
    yield from open_passes


def _fits(members: Sequence[tuple[FitJob, Microbatch]], job: FitJob, micro: Microbatch) -> bool:
    base, budget = job.learner.base, job.learner.token_budget
    used = sum(len(other.tokens) for _, other in members) + len(micro.tokens)
    return members[0][0].learner.base is base and base.native and used <= budget
