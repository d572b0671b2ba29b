"""Updates one after the other: how far those before have moved."""

from __future__ import annotations

import torch
from torch import Tensor


def others_moved(moved: Tensor, episode: Tensor, role: Tensor, at_episode: Tensor, at_role: Tensor) -> Tensor:
    """For each token of a policy to come, the summed log-ratios of what other roles said in its episode: [N] → [M].

    `moved`, `episode` and `role` [N] are of the tokens of a policy that has been updated.
    """
    roles = 1 + int(torch.cat([role, at_role]).max())
    episodes = 1 + int(torch.cat([episode, at_episode]).max())
    by_role = torch.zeros(episodes * roles, dtype=torch.float64)
    by_role.index_add_(0, episode * roles + role, moved.double())
    others = by_role.view(episodes, roles).sum(1)[at_episode] - by_role[at_episode * roles + at_role]
    return others.to(moved.dtype)
