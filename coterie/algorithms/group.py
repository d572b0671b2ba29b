"""Advantages from groups: a sample is good if it earned more than those it is compared with."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from coterie.algorithms.base import Algorithm
from coterie.limits import Share
from coterie.rl.advantages import centred, group_mean, is_constant, leave_one_out, scaled
from coterie.rl.groups import Sample, number
from coterie.types import Episode, Metrics

Baseline = Literal["mean", "others", "ema", "none"]
Scale = Literal["deviation", "none"]

DECAY = 0.95
AVERAGES = "averages"  # in the memory: the running average of every group, by its key


@dataclass(frozen=True, kw_only=True)
class Group(Algorithm):
    """The estimator that all algorithms without a critic share."""

    baseline: Baseline = "mean"  # what a reward is held against: the group's mean, the others', a running one, nothing
    decay: Share = DECAY  # of `baseline: ema`: how much of the average is kept from step to step
    scale: Scale = "deviation"  # divide by the deviation of the group's rewards, or not
    gamma_turn: Share = 1.0  # discount from a turn to the next one, whoever says it; of magrpo, from round to round
    drop_constant: bool = False  # leave out groups whose rewards are all equal (DAPO)
    drop_cut: bool = False  # leave out turns that ran out of room; what they earned still counts for their group

    def samples(self, episodes: Sequence[Episode]) -> list[Sample]:
        """What is compared, each with the key of its group."""
        raise NotImplementedError

    def group_sizes(self, episodes: Sequence[Episode]) -> list[int]:
        return list(Counter(sample.key for sample in self.samples(episodes)).values())

    def problems(self, config: Any) -> Iterator[tuple[str, str]]:
        yield from super().problems(config)
        if self.decay != DECAY and self.baseline != "ema":
            yield "algorithm.decay", f"has no effect with baseline: {self.baseline}; it is of baseline: ema"

    def compute_advantages(self, episodes: list[Episode], memory: dict[str, Any]) -> Metrics:
        return self.judge(self.samples(episodes), memory)

    def judge(self, samples: list[Sample], memory: dict[str, Any]) -> Metrics:
        """Write the advantages of these samples, and count what was compared and what was left out."""
        group = torch.tensor(number([sample.key for sample in samples]), dtype=torch.long)
        rewards = torch.tensor([sample.reward for sample in samples], dtype=torch.float64)
        constant = is_constant(rewards, group)
        advantages = self.weighed(self.advantages(samples, rewards, group, memory), samples, group)
        dropped = Counter(constant=0, cut=0)
        for sample, own, flat in zip(samples, advantages, constant.tolist(), strict=True):
            for turn in sample.turns:
                unfit = {"constant": flat and self.drop_constant, "cut": turn.stop == "length" and self.drop_cut}
                dropped.update(unfit)
                size = len(turn.response_ids)
                turn.advantages = None if any(unfit.values()) else own.float().expand(size).clone()
        report = _report(samples, group, constant)
        return report | {f"dropped/{why}": float(count) for why, count in dropped.items()}

    def advantages(
        self, samples: Sequence[Sample], rewards: Tensor, group: Tensor, memory: dict[str, Any]
    ) -> Sequence[Tensor]:
        """Those of each sample: [1], for all its tokens, or one for each."""
        return self.compared(samples, rewards, group, memory)[:, None].unbind()

    def weighed(self, advantages: Sequence[Tensor], samples: Sequence[Sample], group: Tensor) -> Sequence[Tensor]:
        """Advantages weighted by anything else that is known of a sample."""
        return advantages

    def compared(self, samples: Sequence[Sample], rewards: Tensor, group: Tensor, memory: dict[str, Any]) -> Tensor:
        """How much better each sample was than its baseline: [N]."""
        if self.baseline == "ema":
            off = rewards - self._average(samples, group_mean(rewards, group), memory)
        else:
            off = {"mean": centred, "others": leave_one_out, "none": lambda r, _: r}[self.baseline](rewards, group)
        return scaled(off, rewards, group) if self.scale == "deviation" else off

    def _average(self, samples: Sequence[Sample], means: Tensor, memory: dict[str, Any]) -> Tensor:
        """What each sample's group earned in the steps before; the first time, what it earns in this one."""
        averages: dict[Any, float] = memory.setdefault(AVERAGES, {})
        now = {sample.key: mean for sample, mean in zip(samples, means.tolist(), strict=True)}
        before = {key: averages.get(key, mean) for key, mean in now.items()}
        # Once a step and by its mean: one sample after the other, their order would matter.
        averages |= {key: self.decay * before[key] + (1 - self.decay) * mean for key, mean in now.items()}
        return torch.tensor([before[sample.key] for sample in samples], dtype=torch.float64)


def _report(samples: Sequence[Sample], group: Tensor, constant: Tensor) -> Metrics:
    """How many groups there are, and how many teach nothing or compare different prompts."""
    sizes = torch.bincount(group) if len(group) else group
    prompts: dict[int, set[tuple[int, ...]]] = {}
    for g, sample in zip(group.tolist(), samples, strict=True):
        prompts.setdefault(g, set()).add(sample.turns[0].prompt_ids)
    return {
        "groups": float(len(prompts)),
        "groups/singleton": float((sizes == 1).sum()),
        "groups/constant": float(len(torch.unique(group[constant]))),
        "groups/mixed_prompts": float(sum(len(different) > 1 for different in prompts.values())),
    }
