"""VDN and QMIX networks: role utilities and their mixing into the team's value Q_tot.

Shapes: N joint turns, R roles, D features of a text, H hidden units.
"""

from __future__ import annotations

from typing import Literal, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class MixerOptions(Protocol):
    """Options of an algorithm with a mixer of message utilities."""

    @property
    def warmup(self) -> int: ...
    @property
    def target(self) -> Literal["td", "return"]: ...
    @property
    def width(self) -> int: ...
    @property
    def value_lr(self) -> float: ...
    @property
    def value_fits(self) -> int: ...
    @property
    def draw(self) -> int: ...
    @property
    def buffer(self) -> int: ...
    @property
    def polyak(self) -> float: ...
    @property
    def gamma_turn(self) -> float: ...

    def mixing(self, roles: int, features: int) -> nn.Module:
        """The mixing network: utilities → the team's value."""


class Utility(nn.Module):
    """The utility of one role's message: Q_i = MLP_i([s; a_i])."""

    def __init__(self, features: int, hidden: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(2 * features, hidden), nn.ReLU(), nn.Linear(hidden, 1))

    def forward(self, state: Tensor, action: Tensor) -> Tensor:
        """[N, D], [N, D] → [N]"""
        return self.layers(torch.cat([state, action], dim=-1))[:, 0]


class Additive(nn.Module):
    """VDN: Q_tot is the sum of the utilities."""

    def forward(self, utilities: Tensor, state: Tensor) -> Tensor:
        """[N, R], [N, D] → [N]"""
        return utilities.sum(dim=1)


class Monotonic(nn.Module):
    """QMIX: Q_tot is monotonic in every utility, with weights that hypernetworks compute from the state."""

    def __init__(self, roles: int, features: int, hidden: int) -> None:
        super().__init__()
        self.w1 = nn.Linear(features, roles * hidden)
        self.b1 = nn.Linear(features, hidden)
        self.w2 = nn.Linear(features, hidden)
        self.v = nn.Sequential(nn.Linear(features, hidden), nn.ReLU(), nn.Linear(hidden, 1))
        for layer, weight in ((self.w1, 1.0), (self.b1, 0.0), (self.w2, 1.0 / hidden)):
            _nearly_constant(layer, weight)  # start near VDN's sum: a random Q_tot would be far off

    def forward(self, utilities: Tensor, state: Tensor) -> Tensor:
        """[N, R], [N, D] → [N]"""
        w1 = self.w1(state).view(*utilities.shape, -1)
        return monotonic(utilities, w1, self.b1(state), self.w2(state), self.v(state)[:, 0])


@torch.no_grad()
def _nearly_constant(layer: nn.Linear, number: float) -> None:
    layer.weight.mul_(0.1 * max(number, 0.1))
    layer.bias.fill_(number)


def monotonic(utilities: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, v: Tensor) -> Tensor:
    """h = ELU(qᵀ|W1| + b1), Q_tot = h·|W2| + V, row by row: [N, R], [N, R, H], [N, H], [N, H], [N] → [N]."""
    hidden = F.elu(torch.einsum("nr,nrh->nh", utilities, w1.abs()) + b1)
    return (hidden * w2.abs()).sum(dim=1) + v


class Decomposition(nn.Module):
    """Q_tot of a joint turn. The utility of a role without a message in it is zero."""

    def __init__(self, roles: int, features: int, hidden: int, mixing: nn.Module) -> None:
        super().__init__()
        self.roles = nn.ModuleList([Utility(features, hidden) for _ in range(roles)])
        self.mixing = mixing

    def utilities(self, state: Tensor, actions: Tensor) -> Tensor:
        """The utility of each role's message: [N, D], [N, R, D] → [N, R]."""
        return torch.stack([utility(state, actions[:, i]) for i, utility in enumerate(self.roles)], dim=1)

    def forward(self, state: Tensor, actions: Tensor, present: Tensor) -> Tensor:
        """[N, D], [N, R, D], [N, R] → [N]"""
        return self.mixing(self.utilities(state, actions) * present, state)


def standardized_by(utilities: Tensor, known: Tensor, present: Tensor, epsilon: float = 1e-6) -> Tensor:
    """Each role's utilities, standardized by the mean and deviation of its utilities in the replay buffer: → [N, R].

    `known` [K, R] are the buffer's utilities; `present` [K, R] is True where the role had a message.
    """
    count = present.sum(dim=0)
    mean = (known * present).sum(dim=0) / count.clamp(min=1)
    square = ((known - mean) ** 2 * present).sum(dim=0) / (count - 1).clamp(min=1)
    return (utilities - mean) / (square.sqrt() + epsilon)


def td_target(reward: Tensor, done: Tensor, following: Tensor, gamma: float) -> Tensor:
    """y = r + γ·(1 − done)·Q_tot⁻(s′, a′): [N] → [N]. `following` is ignored where done, even if NaN."""
    return reward + gamma * torch.where(done, 0.0, following)


@torch.no_grad()
def polyak_update(target: nn.Module, online: nn.Module, rate: float) -> None:
    """Polyak averaging: target ← (1 − rate)·target + rate·online."""
    for slow, fast in zip(target.parameters(), online.parameters(), strict=True):
        slow.lerp_(fast, rate)
