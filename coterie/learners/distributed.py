"""The processes of one run, where torchrun starts several: each plays and fits a share, and all know the same.

Every process runs the same program on the same seeds. What one of them alone knows is gathered, so that all decide
alike; what is a sum over rows is added up.
"""

from __future__ import annotations

import atexit
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from coterie.errors import UserError
from coterie.types import Batch

PATIENCE = timedelta(minutes=30)  # with a process that plays long episodes, or has hung
BUCKET = 1 << 24  # numbers that travel together: one message per tensor would be slow for adapters

T = TypeVar("T")


class LostProcess(UserError, RuntimeError):
    """Another process of the run is gone, or does not answer."""


@dataclass(frozen=True)
class Processes:
    """This process among those of its run. One that is alone has all the rows and nobody to ask."""

    rank: int = 0
    size: int = 1

    @property
    def first(self) -> bool:
        """Whether this is the one that writes the run's folder and talks to the user."""
        return self.rank == 0

    def share(self, count: int) -> slice:
        """Which of so many things are this process's. Neighbours stay together: they may share a prompt."""
        return slice(count * self.rank // self.size, count * (self.rank + 1) // self.size)

    def rows(self, batch: Batch) -> slice:
        """The tokens of this process's rows: whole rows, and about as many tokens for each process."""
        starts = torch.searchsorted(batch.row, torch.arange(batch.rows + 1))
        middles = (starts[:-1] + starts[1:]) / 2
        owner = (middles * self.size / max(len(batch), 1)).long()
        bounds = torch.searchsorted(owner, torch.tensor([self.rank, self.rank + 1]))
        return slice(*starts[bounds].tolist())

    def gather(self, own: Sequence[T]) -> list[T]:
        """What all have, in the order of the processes."""
        if self.size == 1:
            return list(own)
        everyones: list[Sequence[T]] = [()] * self.size
        with _answering():
            dist.all_gather_object(everyones, list(own))
        return [thing for theirs in everyones for thing in theirs]

    def agree(self, value: T) -> T:
        """The first process's word on it."""
        return self.gather([value])[0]

    def any(self, flag: bool) -> bool:
        """Whether it holds in any process."""
        return any(self.gather([flag]))

    def wait(self) -> None:
        """Until all have come here."""
        self.gather([None])

    def add(self, tensors: Sequence[Tensor]) -> None:
        """Each tensor becomes the sum of everyone's, in place and to the same bits everywhere."""
        if self.size == 1:
            return
        for bucket in _buckets(tensors):
            flat = torch.cat([tensor.reshape(-1) for tensor in bucket])
            with _answering():
                dist.all_reduce(flat)
            for tensor, part in zip(bucket, flat.split([tensor.numel() for tensor in bucket]), strict=True):
                tensor.copy_(part.view_as(tensor))

    def add_gradients(self, parameters: Sequence[nn.Parameter]) -> None:
        """As if one process had seen all rows; what nobody has a gradient for keeps none."""
        if self.size == 1:
            return
        touched = torch.tensor([float(parameter.grad is not None) for parameter in parameters])
        self.add([touched])
        gradients = []
        for parameter, somewhere in zip(parameters, touched.tolist(), strict=True):
            if somewhere and parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            if parameter.grad is not None:
                gradients.append(parameter.grad)
        self.add(gradients)


ALONE = Processes()


@cache
def joined() -> Processes:
    """Those that torchrun started with this one; without torchrun, this one alone."""
    if not dist.is_torchelastic_launched() or os.environ["WORLD_SIZE"] == "1":
        return ALONE
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    with _answering():
        dist.init_process_group("cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo", timeout=PATIENCE)
    atexit.register(dist.destroy_process_group)
    return Processes(dist.get_rank(), dist.get_world_size())


@contextmanager
def _answering() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        raise LostProcess(
            f"another process of this run has ended, or has not answered for {PATIENCE}; what it said is above or in "
            f"its own log. `coterie train --resume` goes on from the latest checkpoint.\n{error}"
        ) from error


def _buckets(tensors: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    """Neighbours that fit together into a bucket; a tensor that fits into none is one of its own."""
    bucket: list[Tensor] = []
    for tensor in tensors:
        if bucket and sum(t.numel() for t in bucket) + tensor.numel() > BUCKET:
            yield bucket
            bucket = []
        bucket.append(tensor)
    if bucket:
        yield bucket
