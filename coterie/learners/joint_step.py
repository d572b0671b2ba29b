"""One optimiser step of each of several policies; adapters on one base share its forwards and backwards."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from coterie.learners.fit_metrics import FitMetrics
from coterie.learners.packing import Stream, joined
from coterie.models.attention import to_device_async
from coterie.types import Batch, Loss, Measure, Metrics

if TYPE_CHECKING:
    from coterie.learners.learner import TorchLearner


class FitJob:
    """What one policy is to learn in one step: the least Σ weights·loss."""

    def __init__(
        self, learner: TorchLearner, batch: Batch, weights: Tensor, loss: Loss, measure: Measure | None = None
    ) -> None:
        assert learner.optimizer is not None, f"{learner.policy} is frozen"
        learner.optimizer.zero_grad(set_to_none=True)
        self.learner, self.batch, self.loss = learner, batch, loss
        self.here, self.weights = learner.here(batch), to_device_async(weights, learner.base.device)
        self.tally = FitMetrics(learner.base.device, learner.speaks, measure)

    def cost(self, stream: Stream, hidden: Tensor) -> Tensor:
        """Of one stream, whose hidden states these are: []."""
        part = self.here.each(lambda column: column[stream.index])
        scores = self.learner.scores_of(hidden[stream.source], part)
        cost = (self.loss(scores, part) * self.weights[stream.index]).sum()
        self.tally.add(cost, scores, part)
        return cost

    def end(self) -> Metrics:
        """Take the step."""
        norm = self.learner.descend()
        count = int(self.batch.mask.sum())
        return self.tally.read(count, norm, self.learner.processes) | {"lr": self.learner.rate}


def fit_together(lessons: Sequence[FitJob]) -> list[Metrics]:
    """Policies have no weights in common, so that each gets the gradient that it would get alone."""
    for shares in _loads(lessons):
        learner = shares[0][0].learner
        stream = joined([stream for _, stream in shares])
        sizes = [len(stream.tokens) for _, stream in shares]
        ends = torch.tensor(sizes).cumsum(0).tolist()
        names = [lesson.learner.name for lesson, _ in shares]
        segments = [(end - size, end, name) for size, end, name in zip(sizes, ends, names, strict=True)]
        # Around `backward` too: gradient checkpointing runs the layers again there.
        with learner.base.routing.on(segments), learner.precision():
            hidden = learner.base.hidden(stream.tokens, stream.positions, stream.layout, segments).split(sizes)
            costs = [lesson.cost(own, part) for (lesson, own), part in zip(shares, hidden, strict=True)]
            torch.stack(costs).sum().backward()
    return [lesson.end() for lesson in lessons]


def _loads(lessons: Sequence[FitJob]) -> Iterator[list[tuple[FitJob, Stream]]]:
    """What goes through a base at once: within the token budget, streams of several policies."""
    open_loads: list[list[tuple[FitJob, Stream]]] = []
    for lesson in lessons:
        for stream in lesson.learner.streams(lesson.batch):
            fitting = [load for load in open_loads if _fits(load, lesson, stream)]
            if len(lessons) == 1:
                yield [(lesson, stream)]
            elif fitting:
                fitting[0].append((lesson, stream))
            else:
                open_loads.append([(lesson, stream)])
    yield from open_loads


def _fits(load: Sequence[tuple[FitJob, Stream]], lesson: FitJob, stream: Stream) -> bool:
    base, budget = lesson.learner.base, lesson.learner.budget
    used = sum(len(other.tokens) for _, other in load) + len(stream.tokens)
    return load[0][0].learner.base is base and base.native and used <= budget
