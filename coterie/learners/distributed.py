"""Data parallelism with torch.distributed: torchrun starts several processes, and each plays and trains on a shard.

Every process runs the same program with the same seeds. Results of single processes are all-gathered, so that all
processes take the same decisions; sums over rows, such as gradients, are all-reduced.
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

TIMEOUT = timedelta(minutes=30)  # of a collective; long, as another process may still be playing episodes
BUCKET = 1 << 24  # numbers per all-reduce: one call per tensor would be slow for adapters

T = TypeVar("T")


class LostProcess(UserError, RuntimeError):
    """A collective failed: another process has ended or timed out."""


@dataclass(frozen=True)
class Processes:
    """Rank and world size of this process, and the collectives; with one process they return at once."""

    rank: int = 0
    size: int = 1
    presharded: bool = False  # batches hold this process's rows alone, not those of all processes

    @property
    def is_main(self) -> bool:
        """True for rank 0, which writes the run folder and prints."""
        return self.rank == 0

    def shard(self, count: int) -> slice:
        """This process's share of `count` items; contiguous, as neighbors often share a prompt."""
        return slice(count * self.rank // self.size, count * (self.rank + 1) // self.size)

    def shard_rows(self, batch: Batch) -> slice:
        """The tokens of this process's rows: whole rows, about as many tokens for each process."""
        if self.presharded:
            return slice(0, len(batch))
        starts = torch.searchsorted(batch.row, torch.arange(batch.rows + 1))
        middles = (starts[:-1] + starts[1:]) / 2
        owner = (middles * self.size / max(len(batch), 1)).long()
        bounds = torch.searchsorted(owner, torch.tensor([self.rank, self.rank + 1]))
        return slice(*starts[bounds].tolist())

    def own_rows(self, batch: Batch) -> Batch:
        """This process's rows, renumbered."""
        own = self.shard_rows(batch)
        part = batch.each(lambda column: column[own])
        part.row = part.row - part.row[:1]
        return part

    def all_gather(self, own: Sequence[T]) -> list[T]:
        """The items of all processes, in order of rank."""
        if self.size == 1:
            return list(own)
        gathered: list[Sequence[T]] = [()] * self.size
        with _reporting_lost_processes():
            dist.all_gather_object(gathered, list(own))
        return [item for items in gathered for item in items]

    def broadcast(self, value: T) -> T:
        """The value of rank 0."""
        return self.all_gather([value])[0]

    def any(self, flag: bool) -> bool:
        """True if the flag is set in any process."""
        return any(self.all_gather([flag]))

    def barrier(self) -> None:
        """Wait until every process has reached this point."""
        self.all_gather([None])

    def pad(self, own: Sequence[T], item: T) -> list[T]:
        """This process's items, padded with `item` to the highest count of all processes."""
        return [*own, *[item] * (max(self.all_gather([len(own)])) - len(own))]

    def all_reduce(self, tensors: Sequence[Tensor]) -> None:
        """Sum each tensor over the processes, in place; the results are bitwise equal in all of them."""
        if self.size == 1:
            return
        for bucket in _buckets(tensors):
            flat = torch.cat([tensor.reshape(-1) for tensor in bucket])
            with _reporting_lost_processes():
                dist.all_reduce(flat)
            for tensor, part in zip(bucket, flat.split([tensor.numel() for tensor in bucket]), strict=True):
                tensor.copy_(part.view_as(tensor))

    def all_reduce_tokens(self, tensors: Sequence[Tensor]) -> None:
        """Sum tensors [..., T] over the tokens of a batch, unless each process has a batch of its own rows."""
        if not self.presharded:
            self.all_reduce(tensors)

    def all_reduce_gradients(self, parameters: Sequence[nn.Parameter]) -> None:
        """Sum the gradients over the processes; parameters without a gradient in any process keep none."""
        if self.size == 1:
            return
        touched = torch.tensor([float(parameter.grad is not None) for parameter in parameters])
        self.all_reduce([touched])
        gradients = []
        for parameter, somewhere in zip(parameters, touched.tolist(), strict=True):
            if somewhere and parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            if parameter.grad is not None:
                gradients.append(parameter.grad)
        self.all_reduce(gradients)


SINGLE_PROCESS = Processes()


@cache
def process_group() -> Processes:
    """Join the processes that torchrun started; without torchrun, this process alone."""
    if not dist.is_torchelastic_launched() or os.environ["WORLD_SIZE"] == "1":
        return SINGLE_PROCESS
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    with _reporting_lost_processes():
        dist.init_process_group(_backend(), timeout=TIMEOUT)
    atexit.register(dist.destroy_process_group)
    return Processes(dist.get_rank(), dist.get_world_size())


def join_processes(rank: int, size: int, address: str) -> Processes:
    """Join a process group by its rendezvous address tcp://host:port, as the learners of a cluster do."""
    if size == 1:
        return SINGLE_PROCESS
    with _reporting_lost_processes():
        dist.init_process_group(_backend(), init_method=f"tcp://{address}", rank=rank, world_size=size, timeout=TIMEOUT)
    return Processes(rank, size)


def _backend() -> str:
    return "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"


@contextmanager
def _reporting_lost_processes() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        raise LostProcess(
            f"another process of this run has ended, or has not answered for {TIMEOUT}; its error is above or in its "
            f"own log. `coterie train --resume` continues from the latest checkpoint.\n{error}"
        ) from error


def _buckets(tensors: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    """Consecutive tensors of up to BUCKET numbers together; a larger tensor is a bucket by itself."""
    bucket: list[Tensor] = []
    for tensor in tensors:
        if bucket and sum(t.numel() for t in bucket) + tensor.numel() > BUCKET:
            yield bucket
            bucket = []
        bucket.append(tensor)
    if bucket:
        yield bucket
