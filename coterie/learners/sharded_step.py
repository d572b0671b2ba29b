"""The optimizer of a sharded model: it updates this process's shard of each parameter, and its state is sharded too.

Checkpoints hold the unsharded state, so a run can be resumed with another number of processes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from coterie.learners.distributed import Processes
from coterie.models.sharding import gather_like, local_shard, own_slice


def optimized(parameters: Sequence[nn.Parameter]) -> list[nn.Parameter]:
    """The tensors that the optimizer updates: the local shard of a sharded parameter, else the parameter itself. Fused
    AdamW cannot have DTensors and plain tensors in one group."""
    return [nn.Parameter(local_shard(one)) if isinstance(one, DTensor) else one for one in parameters]


def take_gradients(parameters: Sequence[nn.Parameter], updated: Sequence[nn.Parameter]) -> set[nn.Parameter]:
    """Move the gradients of sharded parameters to the local shards that the optimizer updates; returns these shards.
    FSDP's backward pass has already summed them over the processes."""
    parts = set()
    for parameter, part in zip(parameters, updated, strict=True):
        if isinstance(parameter, DTensor):
            part.grad, parameter.grad = None if parameter.grad is None else local_shard(parameter.grad), None
            parts.add(part)
    return parts


def clip_gradients(
    updated: Sequence[nn.Parameter], parts: set[nn.Parameter], max_norm: float, processes: Processes
) -> Tensor:
    """Clip by the global gradient norm; returns the norm before clipping. `parts` are this process's shards."""
    if not parts:
        return nn.utils.clip_grad_norm_(updated, max_norm)
    squares = torch.zeros(2, dtype=torch.float64, device=updated[0].device)  # of whole parameters, and of shards
    for one in updated:
        if one.grad is not None:
            squares[int(one in parts)] += one.grad.double().square().sum()
    processes.all_reduce([squares[1:]])
    norm = squares.sum().sqrt().float()
    nn.utils.clip_grads_with_norm_(updated, max_norm, norm)
    return norm


def gathered_state(optimizer: torch.optim.Optimizer, parameters: Sequence[nn.Parameter], keep: bool) -> dict[str, Any]:
    """The unsharded state of the optimizer; `keep` False: only take part in gathering it."""
    state = optimizer.state_dict()
    moments = {i: {k: gather_like(v, parameters[i], keep) for k, v in one.items()} for i, one in state["state"].items()}
    return {**state, "state": moments}


def own_state(state: dict[str, Any], parameters: Sequence[nn.Parameter]) -> dict[str, Any]:
    """This process's shard of an unsharded state."""

    def part(value: Any, parameter: nn.Parameter) -> Any:
        return value[own_slice(parameter)] if isinstance(parameter, DTensor) and value.ndim else value

    moments = {i: {k: part(v, parameters[i]) for k, v in one.items()} for i, one in state["state"].items()}
    return {**state, "state": moments}
