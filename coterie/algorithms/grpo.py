"""GRPO: a turn is good if it earned more than its peers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from coterie.algorithms.base import Algorithm, Share
from coterie.rl.advantages import centred, group_deviation, standardised
from coterie.rl.credit import returns_to_go
from coterie.rl.groups import Peer, group_key, number
from coterie.types import Episode, Metrics


@dataclass(frozen=True, kw_only=True)
class Grpo(Algorithm):
    """Advantages from groups: no critic. (DeepSeekMath, arXiv 2402.03300)"""

    peers: tuple[Peer, ...] = ("task", "role")  # turns that share these are compared
    standardise: bool = True  # divide by the group's deviation
    gamma_turn: Share = 1.0  # discount from a turn to the next one of its role
    drop_constant: bool = False  # leave out groups whose rewards are all equal (DAPO)

    def problems(self, config: Any) -> Iterator[tuple[str, str]]:
        yield from super().problems(config)
        if not self.peers:
            yield "algorithm.peers", "is empty; peers: [task, role] compares turns of one role on one task"
        if "task" in self.peers and config.episodes_per_task < 2:
            yield "episodes_per_task", "is 1, so every group has one member and no advantage; 4 or 8 is usual"

    def credit(self, episodes: list[Episode], memory: dict[str, Any]) -> Metrics:
        earned = [self.returns(episode) for episode in episodes]
        said = [(e, t, r) for e, some in zip(episodes, earned, strict=True) for t, r in zip(e.turns, some, strict=True)]
        said = [(episode, turn, reward) for episode, turn, reward in said if not turn.given]
        keys = [group_key(episode, turn, self.peers) for episode, turn, _ in said]
        group = torch.tensor(number(keys), dtype=torch.long)
        rewards = torch.tensor([reward for _, _, reward in said], dtype=torch.float64)
        advantages = standardised(rewards, group) if self.standardise else centred(rewards, group)
        constant = group_deviation(rewards, group) < 1e-9
        for (_, turn, _), advantage, flat in zip(said, advantages.tolist(), constant.tolist(), strict=True):
            if not (flat and self.drop_constant):
                turn.advantages = torch.full((len(turn.response_ids),), advantage)
        return _report(group, constant, [turn.prompt_ids for _, turn, _ in said])

    def returns(self, episode: Episode) -> list[float]:
        """What each turn earned and its role earned later, less what leaving the reference cost the turn."""
        turns = episode.turns
        assert all(turn.earned is not None for turn in turns), "credit.assign comes before algorithm.credit"
        togo = returns_to_go([turn.earned or 0.0 for turn in turns], [turn.role for turn in turns], self.gamma_turn)
        return [gain - float(self.token_penalty(turn).sum()) for gain, turn in zip(togo, turns, strict=True)]


def _report(group: torch.Tensor, constant: torch.Tensor, prompts: list[tuple[int, ...]]) -> Metrics:
    """How many groups there are, and how many teach nothing or compare different prompts."""
    count = int(group.max()) + 1 if len(group) else 0
    sizes = torch.bincount(group, minlength=count)
    seen: dict[int, set[tuple[int, ...]]] = {}
    for g, prompt in zip(group.tolist(), prompts, strict=True):
        seen.setdefault(g, set()).add(prompt)
    return {
        "groups": float(count),
        "groups/singleton": float((sizes == 1).sum()),
        "groups/constant": float(len(torch.unique(group[constant]))),
        "groups/mixed_prompts": float(sum(len(p) > 1 for p in seen.values())),
    }
