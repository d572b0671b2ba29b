"""A team's value made of its roles' utilities. N joint turns, R roles, D features of a text, H hidden units."""

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
    """What one role's message is worth: Q_i = MLP_i([s; a_i])."""

    def __init__(self, features: int, hidden: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(2 * features, hidden), nn.ReLU(), nn.Linear(hidden, 1))

    def forward(self, state: Tensor, action: Tensor) -> Tensor:
        """[N, D], [N, D] → [N]"""
        return self.layers(torch.cat([state, action], dim=-1))[:, 0]


class Additive(nn.Module):
    """VDN: the team is worth the sum of its roles."""

    def forward(self, utilities: Tensor, state: Tensor) -> Tensor:
        """[N, R], [N, D] → [N]"""
        return utilities.sum(dim=1)


class Monotonic(nn.Module):
    """QMIX: the team is worth more whenever a role is; how much more, the state decides."""

    def __init__(self, roles: int, features: int, hidden: int) -> None:
        super().__init__()
        self.first = nn.Linear(features, roles * hidden)
        self.shift = nn.Linear(features, hidden)
        self.second = nn.Linear(features, hidden)
        self.value = nn.Sequential(nn.Linear(features, hidden), nn.ReLU(), nn.Linear(hidden, 1))
        for layer, weight in ((self.first, 1.0), (self.shift, 0.0), (self.second, 1.0 / hidden)):
            _nearly_constant(layer, weight)  # it begins near VDN's sum; at random the team's value begins far off

    def forward(self, utilities: Tensor, state: Tensor) -> Tensor:
        """[N, R], [N, D] → [N]"""
        first = self.first(state).view(*utilities.shape, -1)
        return monotonic(utilities, first, self.shift(state), self.second(state), self.value(state)[:, 0])


@torch.no_grad()
def _nearly_constant(layer: nn.Linear, number: float) -> None:
    layer.weight.mul_(0.1 * max(number, 0.1))
    layer.bias.fill_(number)


def monotonic(utilities: Tensor, first: Tensor, shift: Tensor, second: Tensor, value: Tensor) -> Tensor:
    """h = ELU(qᵀ|W1| + b1), Q_tot = h·|W2| + V, row by row: [N, R], [N, R, H], [N, H], [N, H], [N] → [N]."""
    hidden = F.elu(torch.einsum("nr,nrh->nh", utilities, first.abs()) + shift)
    return (hidden * second.abs()).sum(dim=1) + value


class Decomposition(nn.Module):
    """The value of a joint turn. A role that said nothing in it has no part in the sum that is mixed."""

    def __init__(self, roles: int, features: int, hidden: int, mixing: nn.Module) -> None:
        super().__init__()
        self.roles = nn.ModuleList([Utility(features, hidden) for _ in range(roles)])
        self.mixing = mixing

    def utilities(self, state: Tensor, actions: Tensor) -> Tensor:
        """What each role's message is worth: [N, D], [N, R, D] → [N, R]."""
        return torch.stack([utility(state, actions[:, i]) for i, utility in enumerate(self.roles)], dim=1)

    def forward(self, state: Tensor, actions: Tensor, present: Tensor) -> Tensor:
        """[N, D], [N, R, D], [N, R] → [N]"""
        return self.mixing(self.utilities(state, actions) * present, state)


def standardised_by(utilities: Tensor, known: Tensor, present: Tensor, epsilon: float = 1e-6) -> Tensor:
    """Each role's utilities less the mean of its known ones, over their deviation: [N, R], [K, R], [K, R] → [N, R]."""
    count = present.sum(dim=0)
    mean = (known * present).sum(dim=0) / count.clamp(min=1)
    square = ((known - mean) ** 2 * present).sum(dim=0) / (count - 1).clamp(min=1)
    return (utilities - mean) / (square.sqrt() + epsilon)


def td_target(reward: Tensor, done: Tensor, following: Tensor, gamma: float) -> Tensor:
    """y = r + γ·(1 − done)·Q_tot⁻(s′, a′): [N] → [N]. What follows the end counts nothing, whatever it is."""
    return reward + gamma * torch.where(done, 0.0, following)


@torch.no_grad()
def track(target: nn.Module, online: nn.Module, rate: float) -> None:
    """Polyak averaging: every weight of the target goes this share of the way to the online one's."""
    for slow, fast in zip(target.parameters(), online.parameters(), strict=True):
        slow.lerp_(fast, rate)
