"""Advantage estimation as pure functions of tensors: group baselines, leave-one-out, GAE, whitening."""

from __future__ import annotations

import torch
from torch import Tensor

FLAT = 1e-6  # a smaller range or deviation is rounding error


def _group_sizes(group: Tensor) -> tuple[Tensor, Tensor]:
    """Index of each sample's group 0…G−1 and the group sizes: [N], [G]."""
    _, index, size = torch.unique(group, return_inverse=True, return_counts=True)
    return index, size


def group_mean(rewards: Tensor, group: Tensor) -> Tensor:
    """The mean of each sample's group: [N] → [N]."""
    index, size = _group_sizes(group)
    total = torch.zeros(len(size), dtype=rewards.dtype).index_add_(0, index, rewards)
    return (total / size)[index]


def group_deviation(rewards: Tensor, group: Tensor) -> Tensor:
    """The unbiased standard deviation of each sample's group; 0 for a group of one."""
    index, size = _group_sizes(group)
    square = (rewards - group_mean(rewards, group)) ** 2
    total = torch.zeros(len(size), dtype=rewards.dtype).index_add_(0, index, square)
    return (total / (size - 1).clamp(min=1)).sqrt()[index]


def centered(rewards: Tensor, group: Tensor) -> Tensor:
    """Each reward minus the mean of its group."""
    return rewards - group_mean(rewards, group)


def leave_one_out(rewards: Tensor, group: Tensor) -> Tensor:
    """Each reward minus the mean of the *others* in its group; a group of one gets zero."""
    index, size = _group_sizes(group)
    return centered(rewards, group) * (size / (size - 1).clamp(min=1))[index]


def group_range(rewards: Tensor, group: Tensor) -> Tensor:
    """Maximum minus minimum of each sample's group: exactly zero for equal rewards of any size."""
    index, size = _group_sizes(group)
    highest, lowest = (torch.zeros(len(size), dtype=rewards.dtype) for _ in range(2))
    highest.scatter_reduce_(0, index, rewards, "amax", include_self=False)
    lowest.scatter_reduce_(0, index, rewards, "amin", include_self=False)
    return (highest - lowest)[index]


def is_constant(rewards: Tensor, group: Tensor) -> Tensor:
    """True for samples of groups whose rewards differ by less than 1e-6; a group of one is constant.

    Absolute, not relative to the mean: a bonus of 0.001 on top of 10,000 is a signal too.
    """
    return group_range(rewards, group) < FLAT


def scaled(differences: Tensor, rewards: Tensor, group: Tensor, epsilon: float = 1e-6) -> Tensor:
    """Differences from a baseline over the standard deviation of their group's rewards.

    Zero for constant groups: their deviation is rounding, and dividing by it would turn rounding into advantages.
    """
    return torch.where(is_constant(rewards, group), 0.0, differences / (group_deviation(rewards, group) + epsilon))


def gae(rewards: Tensor, values: Tensor, gamma: Tensor, lam: Tensor) -> tuple[Tensor, Tensor]:
    """Generalized advantage estimation (GAE) along one chain of T sampled tokens: advantages and returns.

    `gamma[t]` and `lam[t]` belong to the step from token t to the next one in play order, so steps within a turn and
    steps to the next turn can have different discounts. `gamma[t] = 0` cuts the chain after t.

    The value after the last token is 0, also where a turn limit ended the episode: the limit is part of the task, and
    no reward comes after it.
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

    A constant scope gets zero: dividing by its deviation would turn rounding into advantages.
    """
    deviation = group_deviation(x, scope)
    return torch.where(deviation > FLAT, centered(x, scope) / deviation.clamp(min=FLAT), 0.0)


def first_of_turn(x: Tensor, turn: Tensor) -> Tensor:
    """For each token, the entry at the first token of its turn: [N] → [N]."""
    _, index, size = torch.unique(turn, return_inverse=True, return_counts=True)
    place = torch.arange(len(turn), device=turn.device)
    first = place.new_full((len(size),), len(turn)).scatter_reduce(0, index, place, "amin")
    return x[first[index]]
