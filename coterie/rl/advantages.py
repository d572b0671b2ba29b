"""From rewards to advantages: pure functions of tensors."""

from __future__ import annotations

import torch
from torch import Tensor

FLAT = 1e-6  # a spread below this is rounding noise


def _group_sizes(group: Tensor) -> tuple[Tensor, Tensor]:
    """Number groups 0…G−1 and count them: index [N], size [G]."""
    _, index, size = torch.unique(group, return_inverse=True, return_counts=True)
    return index, size


def group_mean(rewards: Tensor, group: Tensor) -> Tensor:
    """The mean of the group each sample is in: [N] → [N]."""
    index, size = _group_sizes(group)
    total = torch.zeros(len(size), dtype=rewards.dtype).index_add_(0, index, rewards)
    return (total / size)[index]


def group_deviation(rewards: Tensor, group: Tensor) -> Tensor:
    """The unbiased standard deviation of the group each sample is in; a group of one has zero."""
    index, size = _group_sizes(group)
    square = (rewards - group_mean(rewards, group)) ** 2
    total = torch.zeros(len(size), dtype=rewards.dtype).index_add_(0, index, square)
    return (total / (size - 1).clamp(min=1)).sqrt()[index]


def centred(rewards: Tensor, group: Tensor) -> Tensor:
    """Each reward minus the mean of its group."""
    return rewards - group_mean(rewards, group)


def leave_one_out(rewards: Tensor, group: Tensor) -> Tensor:
    """Each reward minus the mean of the *others* in its group; a group of one gets zero."""
    index, size = _group_sizes(group)
    return centred(rewards, group) * (size / (size - 1).clamp(min=1))[index]


def group_spread(rewards: Tensor, group: Tensor) -> Tensor:
    """Highest minus lowest of the group each sample is in: exactly zero where all are equal, however large."""
    index, size = _group_sizes(group)
    highest, lowest = (torch.zeros(len(size), dtype=rewards.dtype) for _ in range(2))
    highest.scatter_reduce_(0, index, rewards, "amax", include_self=False)
    lowest.scatter_reduce_(0, index, rewards, "amin", include_self=False)
    return (highest - lowest)[index]


def is_constant(rewards: Tensor, group: Tensor) -> Tensor:
    """Whether the rewards of each sample's group differ by less than 1e-6, whatever their mean; so in a group of one.

    Not relative to the mean: a bonus of 0.001 on top of 10,000 is a lesson as well.
    """
    return group_spread(rewards, group) < FLAT


def scaled(off: Tensor, rewards: Tensor, group: Tensor, epsilon: float = 1e-6) -> Tensor:
    """Distances from a baseline over the deviation of their group's rewards.

    Where these are constant it is zero: their deviation is rounding, and to divide by it would make advantages of it.
    """
    return torch.where(is_constant(rewards, group), 0.0, off / (group_deviation(rewards, group) + epsilon))


def standardised(rewards: Tensor, group: Tensor, epsilon: float = 1e-6) -> Tensor:
    """Each reward minus the mean of its group, over the group's deviation; a group of one gets zero."""
    return scaled(centred(rewards, group), rewards, group, epsilon)


def gae(rewards: Tensor, values: Tensor, gamma: Tensor, lam: Tensor) -> tuple[Tensor, Tensor]:
    """Generalised advantage estimation along one chain of T sampled tokens: advantages and returns.

    `gamma[t]` and `lam[t]` stand between token t and the next one in play order, so a step inside a
    turn and a step to the next turn can be discounted apart. `gamma[t] = 0` cuts the chain after t.

    After the last token nothing is expected. That holds also where a limit of turns has ended the episode: the limit
    is a rule of the game, the team is graded as it stands there, and what it left undone is never earned.
    """
    following = torch.cat([values[1:], values.new_zeros(1)])
    delta = rewards + gamma * following - values
    decay = (gamma * lam).tolist()
    advantages, carried = [0.0] * len(delta), 0.0
    for t, step in reversed(list(enumerate(delta.tolist()))):
        carried = step + decay[t] * carried
        advantages[t] = carried
    result = torch.tensor(advantages, dtype=values.dtype)
    return result, result + values


def whitened(x: Tensor, scope: Tensor) -> Tensor:
    """Zero mean and unit variance over each scope, such as all tokens of a policy: [T] → [T].

    A scope of equal numbers gets zero: divided by their spread, rounding noise would look like advantages.
    """
    spread = group_deviation(x, scope)
    return torch.where(spread > FLAT, centred(x, scope) / spread.clamp(min=FLAT), 0.0)


def first_of_turn(x: Tensor, turn: Tensor) -> Tensor:
    """What stands at the first token of the turn that each token is in: [N] → [N]."""
    _, index, size = torch.unique(turn, return_inverse=True, return_counts=True)
    place = torch.arange(len(turn), device=turn.device)
    first = place.new_full((len(size),), len(turn)).scatter_reduce(0, index, place, "amin")
    return x[first[index]]
