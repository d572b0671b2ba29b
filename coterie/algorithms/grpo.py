"""GRPO: a turn is good if it earned more than its peers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from coterie.algorithms.base import Count, Positive, Share
from coterie.algorithms.group import Baseline, Group, Scale
from coterie.rl.confidence import Gain, gained
from coterie.rl.credit import returns_to_go
from coterie.rl.groups import Peer, Sample, group_key
from coterie.rl.losses import Reduce
from coterie.types import Batch, Episode, Metrics

ALPHA = 0.25


@dataclass(frozen=True, kw_only=True)
class RoleSettings:
    """What is different for one role; what is null is as for all. Such a role is compared with no other."""

    peers: tuple[Peer, ...] | None = None
    baseline: Baseline | None = None
    decay: Share | None = None
    scale: Scale | None = None
    reduce: Reduce | None = None
    reduce_length: Count | None = None
    drop_constant: bool | None = None
    drop_cut: bool | None = None
    gain: Gain | None = None
    gain_alpha: Positive | None = None


@dataclass(frozen=True, kw_only=True)
class Grpo(Group):
    """Holds what a turn earned against the mean of its peers, by default the same role's turns on the same task.
    The plain choice for a team with a verifiable reward; every setting can be another one for each role.
    Costs several episodes per task and no critic. (DeepSeekMath, arXiv 2402.03300)"""

    peers: tuple[Peer, ...] = ("task", "role")  # turns that share these are compared
    gain: Gain = "none"  # weigh advantages by how sure the message was, alone or beside the other roles
    gain_alpha: Positive = ALPHA
    roles: dict[str, RoleSettings] = field(default_factory=dict)  # what is different for some roles

    forked: ClassVar[bool] = False  # whether siblings come from forks, so that one episode per task is enough

    def problems(self, config: Any) -> Iterator[tuple[str, str]]:
        yield from super().problems(config)
        yield from self._unfit(config, "algorithm")
        settings = {"algorithm": self.peers, **{_key(role): own.peers for role, own in self.roles.items()}}
        for key in [key for key, peers in settings.items() if peers == ()]:
            yield f"{key}.peers", "is empty; peers: [task, role] compares turns of one role on one task"
        for role in self.roles:
            key = _key(role)
            if role not in config.roles:
                yield key, f"nobody is called so; the roles are {', '.join(config.roles)}"
                continue
            own = self.of(role)
            yield from own._unfit(config, key)
            if own.reduce == "fixed" and own.reduce_length is None:
                yield f"{key}.reduce_length", "goes with reduce: fixed, which divides by it"

    def _unfit(self, config: Any, at: str) -> Iterator[tuple[str, str]]:
        """What is wrong with these settings, for all or for the role they are of."""
        compares = self.baseline in ("mean", "others") or self.scale == "deviation"
        if "task" in self.peers and compares and config.episodes_per_task < 2 and not self.forked:
            yield "episodes_per_task", "is 1, so every group has one member and no advantage; 4 or 8 is usual"
        if "prompt" in self.peers and self.baseline == "ema":
            yield (
                f"{at}.baseline",
                "ema needs groups that come again, and prompts do not; take prompt out of peers",
            )
        if self.gain == "none" and self.gain_alpha != ALPHA:
            yield f"{at}.gain_alpha", "has no effect while gain is none"
        models = {policy.model for policy in config.policies.values()}
        if self.gain in ("confidence", "relative") and len(models) > 1 and not {"role", "policy"} & {*self.peers}:
            yield f"{at}.gain", "compares entropies, which needs one vocabulary in a group; add role or policy to peers"

    @property
    def reads_entropy(self) -> bool:
        gains = {self.gain, *(self.of(role).gain for role in self.roles)}
        return bool(gains & {"confidence", "relative"})

    def of(self, role: str) -> Grpo:
        """The algorithm with the settings of this role for all."""
        if role not in self.roles:
            return self
        own = vars(self.roles[role])
        made = replace(self, roles={}, **{name: value for name, value in own.items() if value is not None})
        return made if "role" in made.peers else replace(made, peers=(*made.peers, "role"))

    def samples(self, episodes: Sequence[Episode]) -> list[Sample]:
        return [
            Sample(group_key(episode, turn, self.of(turn.role).peers), episode, (turn,), reward)
            for episode in episodes
            for turn, reward in zip(episode.turns, self.returns(episode), strict=True)
            if not turn.given
        ]

    def returns(self, episode: Episode) -> list[float]:
        """What each turn earned and its role earned later, less what leaving the reference cost the turn."""
        turns = episode.turns
        assert all(turn.earned is not None for turn in turns), "credit.assign comes before algorithm.credit"
        togo = returns_to_go([turn.earned or 0.0 for turn in turns], [turn.role for turn in turns], self.gamma_turn)
        return [gain - float(self.token_penalty(turn).sum()) for gain, turn in zip(togo, turns, strict=True)]

    def credit(self, episodes: list[Episode], memory: dict[str, Any]) -> Metrics:
        samples = self.samples(episodes)
        parts = [self.judge([s for s in samples if s.turns[0].role not in self.roles], memory)]
        for role in self.roles:
            parts.append(self.of(role).judge([s for s in samples if s.turns[0].role == role], memory))
        return {name: sum(part[name] for part in parts) for name in parts[0]}

    def compared(self, samples: Sequence[Sample], rewards: Tensor, group: Tensor, memory: dict[str, Any]) -> Tensor:
        advantages = super().compared(samples, rewards, group, memory)
        return advantages if self.gain == "none" else gained(advantages, samples, group, self.gain, self.gain_alpha)

    def weights(self, batch: Batch) -> Tensor:
        """What each token counts; with a `reduce` of its own, a role's count as if all were added up in that way."""
        weights = super().weights(batch)
        for role in [role for role in self.roles if role in batch.roles]:
            theirs = batch.role == batch.roles.index(role)
            weights = torch.where(theirs, self.of(role).weights(batch), weights)
        return weights


def _key(role: str) -> str:
    """Where the settings of a role stand in a config."""
    return f'algorithm.roles."{role}"'
