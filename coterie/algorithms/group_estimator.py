"""The group-relative advantage estimator of GRPO, RLOO, RAE and MAGRPO: reward minus a baseline of its group.

baseline   mean     the group's mean reward (GRPO)
           others   leave-one-out: the mean of the group's other samples (RLOO)
           ema      an exponential moving average over steps (RAE)
           none     zero
scale      deviation   divide by the standard deviation of the group's rewards (GRPO)
           none        do not (RLOO, Dr. GRPO)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from coterie.rl.advantages import centered, group_deviation, group_mean, is_constant, leave_one_out, scaled
from coterie.rl.groups import GroupSample, describe_key, group_index
from coterie.types import GroupStats, LeftOut, Metrics

Baseline = Literal["mean", "others", "ema", "none"]
Scale = Literal["deviation", "none"]

AVERAGES = "averages"  # key in `memory`: the moving average of each group, by group key


@dataclass(frozen=True)
class Groups:
    """N samples, the group of each, and the rewards that are compared."""

    samples: Sequence[GroupSample]
    index: Tensor  # [N]
    rewards: Tensor  # [N], float64

    @staticmethod
    def of(samples: Sequence[GroupSample]) -> Groups:
        index = torch.tensor(group_index([sample.key for sample in samples]), dtype=torch.long)
        return Groups(samples, index, torch.tensor([sample.reward for sample in samples], dtype=torch.float64))


def group_advantages(groups: Groups, baseline: Baseline, scale: Scale, decay: float, memory: dict[str, Any]) -> Tensor:
    """Reward minus baseline for each sample, optionally divided by the group's standard deviation: [N]."""
    rewards, index = groups.rewards, groups.index
    if baseline == "ema":
        difference = rewards - _moving_average(groups, decay, memory)
    else:
        difference = {"mean": centered, "others": leave_one_out, "none": lambda r, _: r}[baseline](rewards, index)
    return scaled(difference, rewards, index) if scale == "deviation" else difference


def write_advantages(
    groups: Groups, advantages: Sequence[Tensor], drop_constant: bool, drop_truncated: bool
) -> Metrics:
    """Write `turn.advantages` from one tensor per sample, [1] or one number per token; count groups and dropped turns.

    `drop_constant` leaves out groups of equal rewards, `drop_truncated` leaves out truncated turns.
    """
    _write_groups(groups)
    constant = is_constant(groups.rewards, groups.index)
    dropped = Counter(constant=0, truncated=0)
    for sample, advantage, is_flat in zip(groups.samples, advantages, constant.tolist(), strict=True):
        for turn in sample.turns:
            reasons: dict[LeftOut, bool] = {
                "constant": is_flat and drop_constant,
                "truncated": turn.stop == "length" and drop_truncated,
            }
            dropped.update(reasons)
            size = len(turn.response_ids)
            turn.left_out = next((reason for reason, holds in reasons.items() if holds), None)
            turn.advantages = None if turn.left_out else advantage.float().expand(size).clone()
    return _group_metrics(groups, constant) | {f"dropped/{reason}": float(count) for reason, count in dropped.items()}


def _write_groups(groups: Groups) -> None:
    """Write `turn.group`: the statistics of each turn's group."""
    rewards, index = groups.rewards, groups.index
    means, spreads = group_mean(rewards, index).tolist(), group_deviation(rewards, index).tolist()
    sizes = torch.bincount(index)[index].tolist() if len(index) else []
    keys: dict[Any, Mapping[str, str | int]] = {}  # described once per group: a key may hold a whole prompt
    for i, sample in enumerate(groups.samples):
        if sample.key not in keys:
            keys[sample.key] = describe_key(sample.key)
        for turn in sample.turns:
            turn.group = GroupStats(keys[sample.key], sample.reward, means[i], spreads[i], sizes[i])


def _moving_average(groups: Groups, decay: float, memory: dict[str, Any]) -> Tensor:
    """Each group's moving average over the steps before; for a new group, its mean in this step."""
    averages: dict[Any, float] = memory.setdefault(AVERAGES, {})
    means = group_mean(groups.rewards, groups.index).tolist()
    now = {sample.key: mean for sample, mean in zip(groups.samples, means, strict=True)}
    before = {key: averages.get(key, mean) for key, mean in now.items()}
    # One update per step, by the step's mean: updated sample by sample, the result would depend on their order.
    averages |= {key: decay * before[key] + (1 - decay) * mean for key, mean in now.items()}
    return torch.tensor([before[sample.key] for sample in groups.samples], dtype=torch.float64)


def _group_metrics(groups: Groups, constant: Tensor) -> Metrics:
    """How many groups there are, how many give no advantage, and how many mix prompts."""
    index = groups.index
    sizes = torch.bincount(index) if len(index) else index
    prompts: dict[int, set[tuple[int, ...]]] = {}
    for g, sample in zip(index.tolist(), groups.samples, strict=True):
        prompts.setdefault(g, set()).add(sample.turns[0].prompt_ids)
    return {
        "groups": float(len(prompts)),
        "groups/singleton": float((sizes == 1).sum()),
        "groups/constant": float(len(torch.unique(index[constant]))),
        "groups/mixed_prompts": float(sum(len(different) > 1 for different in prompts.values())),
    }
