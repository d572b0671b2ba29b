"""GRPO: a turn's advantage is its return relative to the group of turns it is compared with, without a critic.

The estimator is `group_estimator.group_advantages`; the clipped loss and the update loop are `Algorithm`'s.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from coterie.algorithms.base import Algorithm, Chain
from coterie.algorithms.group_estimator import Baseline, Groups, Scale, group_advantages, write_advantages
from coterie.limits import Count, Positive, Share
from coterie.rl.confidence import ConfidenceWeight, confidence_weights
from coterie.rl.credit import returns_to_go
from coterie.rl.groups import GroupBy, GroupSample, group_key
from coterie.rl.losses import Reduce
from coterie.types import Batch, Episode, Metrics, Turn

EMPTY = "is empty; group_by: [task, role] compares turns of one role on one task"


@dataclass(frozen=True, kw_only=True)
class RoleSettings:
    """Options that differ for one role; null means as for all. Its turns are then grouped apart from other roles'."""

    group_by: tuple[GroupBy, ...] | None = None  # what forms this role's groups; null, here and below: as for all roles
    baseline: Baseline | None = None  # the baseline of this role
    decay: Share | None = None  # the decay of this role's `baseline: ema`
    scale: Scale | None = None  # the scale of this role
    reduce: Reduce | None = None  # how this role's token losses are averaged
    reduce_length: Count | None = None  # the fixed length of this role's `reduce: fixed`
    drop_constant: bool | None = None  # leave out this role's constant groups
    drop_truncated: bool | None = None  # leave out this role's truncated turns
    confidence_weight: ConfidenceWeight | None = None  # how confidence scales this role's advantages
    confidence_alpha: Positive | None = None  # the strength of this role's confidence weight


@dataclass(frozen=True, kw_only=True)
class Grpo(Algorithm):
    """Compares a turn's return with the mean of its group: by default the same role's turns on the same task.
    The plain choice for a team with a verifiable reward; every option can be set per role.
    Costs several episodes per task and no critic. (DeepSeekMath, arXiv 2402.03300)"""

    baseline: Baseline = "mean"  # the group's mean, the mean of the others, a moving average (ema), or none
    decay: Share = 0.95  # how much of the moving average of `baseline: ema` is kept per step
    scale: Scale = "deviation"  # divide by the standard deviation of the group's rewards, or not
    gamma_turn: Share = 1.0  # discount from a turn to the next one of any role
    drop_constant: bool = False  # leave out groups whose rewards are all equal (DAPO)
    drop_truncated: bool = False  # leave out truncated turns; their rewards still count in their group's baseline
    group_by: tuple[GroupBy, ...] = ("task", "role")  # turns that agree in these form a group
    chain: Chain = "role"  # whose later rewards a turn's return includes: its own role's, or the whole team's
    confidence_weight: ConfidenceWeight = "none"  # scale advantages by confidence, own or relative to other roles
    confidence_alpha: Positive = 0.25  # how much a difference in confidence changes the weight
    roles: dict[str, RoleSettings] = field(default_factory=dict)  # options that differ for some roles

    compares_forks: ClassVar[bool] = False  # True if group members come from forks: then one episode per task is enough

    def compute_advantages(self, episodes: list[Episode], memory: dict[str, Any]) -> Metrics:
        samples = self.samples(episodes)
        parts = [self.compare([s for s in samples if s.turns[0].role not in self.roles], memory)]
        for role in self.roles:
            parts.append(self.for_role(role).compare([s for s in samples if s.turns[0].role == role], memory))
        return {name: sum(part[name] for part in parts) for name in parts[0]}

    def samples(self, episodes: Sequence[Episode]) -> list[GroupSample]:
        """Every turn to train on, with its group key and its return."""
        return [
            GroupSample(group_key(episode, turn, self.for_role(turn.role).group_by), episode, (turn,), reward)
            for episode in episodes
            for turn, reward in zip(episode.turns, self.turn_returns(episode), strict=True)
            if turn.trainable and turn.dropped is None
        ]

    def turn_returns(self, episode: Episode) -> list[float]:
        """Discounted credit to go of each turn, less the turn's own KL penalty."""
        turns = episode.turns
        assert all(turn.credit is not None for turn in turns), "credit.assign comes before compute_advantages"
        returns = self.returns_to_go(turns, [turn.credit or 0.0 for turn in turns])
        return [togo - self.turn_kl_penalty(turn) for togo, turn in zip(returns, turns, strict=True)]

    def returns_to_go(self, turns: Sequence[Turn], rewards: Sequence[float]) -> list[float]:
        """Each turn's reward plus the discounted rewards of later turns of its chain."""
        return returns_to_go(rewards, [turn.role if self.chain == "role" else "" for turn in turns], self.gamma_turn)

    def turn_kl_penalty(self, turn: Turn) -> float:
        return float(self.token_kl_penalty(turn).double().sum())

    def compare(self, samples: list[GroupSample], memory: dict[str, Any]) -> Metrics:
        """Write the advantages of these samples by this algorithm's options."""
        groups = Groups.of(samples)
        advantages = self.sample_advantages(groups, memory)
        if self.confidence_weight != "none" and samples:
            signs = torch.stack([own.mean().sign() for own in advantages])
            factors = confidence_weights(signs, samples, groups.index, self.confidence_weight, self.confidence_alpha)
            advantages = [own * factor for own, factor in zip(advantages, factors, strict=True)]
        return write_advantages(groups, advantages, self.drop_constant, self.drop_truncated)

    def sample_advantages(self, groups: Groups, memory: dict[str, Any]) -> Sequence[Tensor]:
        """One tensor per sample: [1], the same advantage for all its tokens, or one per token."""
        return group_advantages(groups, self.baseline, self.scale, self.decay, memory)[:, None].unbind()

    def for_role(self, role: str) -> Self:
        """This algorithm with the options of one role."""
        if role not in self.roles:
            return self
        own = vars(self.roles[role])
        merged = replace(self, roles={}, **{name: value for name, value in own.items() if value is not None})
        return merged if "role" in merged.group_by else replace(merged, group_by=(*merged.group_by, "role"))

    def loss_weights(self, batch: Batch) -> Tensor:
        """A role with its own `reduce` gets the weights its tokens would have if all were reduced that way."""
        weights = super().loss_weights(batch)
        for role in [role for role in self.roles if role in batch.roles]:
            is_role = batch.role == batch.roles.index(role)
            weights = torch.where(is_role, self.for_role(role).loss_weights(batch), weights)
        return weights

    @property
    def _uses_entropy(self) -> bool:
        return self.confidence_weight in ("confidence", "relative")

    @property
    def needs_entropy(self) -> bool:
        return self._uses_entropy or any(self.for_role(role).needs_entropy for role in self.roles)

    def problems(self, config: Any) -> Iterator[tuple[str, str]]:
        yield from super().problems(config)
        if self.decay != type(self).decay and self.baseline != "ema":
            yield "algorithm.decay", f"has no effect with baseline: {self.baseline}; it belongs to baseline: ema"
        yield from self._group_problems(config, "algorithm")
        for role in self.roles:
            key = f'algorithm.roles."{role}"'
            if role not in config.roles:
                yield key, f"there is no such role; the roles are {', '.join(config.roles)}"
                continue
            if self.roles[role].group_by == ():
                yield f"{key}.group_by", EMPTY
            yield from self.for_role(role)._group_problems(config, key)
            yield from ((f"{key}{option}", message) for option, message in self._unused_by_role(role))

    def _group_problems(self, config: Any, key: str) -> Iterator[tuple[str, str]]:
        """Problems with the group options; `key`: `algorithm`, or the section of one role."""
        if self.group_by == ():
            yield f"{key}.group_by", EMPTY
        compares = self.baseline in ("mean", "others") or self.scale == "deviation"
        lone_episode = compares and config.episodes_per_task < 2 and not self.compares_forks
        if lone_episode and {"task", "prompt"} & {*self.group_by}:
            yield "episodes_per_task", "is 1, so every group has one member and no advantage; 4 or 8 is usual"
        elif lone_episode and config.tasks_per_step < 2 and "role" in self.group_by:
            yield "tasks_per_step", "is 1, and episodes_per_task too, so a role's turn has no other to be compared with"
        if "prompt" in self.group_by and self.baseline == "ema":
            yield f"{key}.baseline", "ema needs groups that recur, and prompts do not; take prompt out of group_by"
        if self.confidence_weight == "none" and self.confidence_alpha != type(self).confidence_alpha:
            yield f"{key}.confidence_alpha", "has no effect while confidence_weight is none"
        models = {policy.model for policy in config.policies.values()}
        if self._uses_entropy and len(models) > 1 and not {"role", "policy"} & {*self.group_by}:
            reason = "compares entropies, which needs one vocabulary per group; add role or policy to group_by"
            yield f"{key}.confidence_weight", reason

    def _unused_by_role(self, role: str) -> Iterator[tuple[str, str]]:
        """Options of a role that have no effect."""
        settings, own = self.roles[role], self.for_role(role)
        if settings == RoleSettings():
            yield "", "is empty: no option differs for this role; leave it out"
        if own.reduce == "fixed" and own.reduce_length is None:
            yield ".reduce_length", "goes with reduce: fixed, which divides by it"
        if own.reduce != "fixed" and settings.reduce_length is not None:
            yield ".reduce_length", "has no effect without reduce: fixed, which divides by it"
        if own.baseline != "ema" and settings.decay is not None:
            yield ".decay", f"has no effect with baseline: {own.baseline}; it belongs to baseline: ema"
