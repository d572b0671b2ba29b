"""CORY: PPO for two copies of one model, a pioneer and an observer, that swap roles during training."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from coterie.algorithms.base import Chain
from coterie.algorithms.ppo import Ppo
from coterie.limits import Count, NotNegative


@dataclass(frozen=True, kw_only=True)
class Cory(Ppo):
    """PPO for a pioneer and an observer that reads its answer; both get the sum of rewards and swap every `swap` steps.
    To fine-tune one model more stably than alone; with `workflow: cory` and `credit: aggregate`.
    Costs two policies and two turns per episode, the second with a longer prompt. (CORY, arXiv 2410.06101)"""

    swap: Count = 10  # steps between swaps of the two roles' policies
    kl: NotNegative = 0.05
    kl_in: Literal["loss", "reward"] = "reward"

    chain: ClassVar[Chain] = "role"
    not_in_advantage: ClassVar[frozenset[str]] = Ppo.not_in_advantage | {"swap"}

    def problems(self, config: Any) -> Iterator[tuple[str, str]]:
        yield from super().problems(config)
        policies = [policy for role in config.roles.values() for policy in role.policies]
        if len(config.roles) != 2 or len(policies) != 2 or len(set(policies)) != 2:
            yield "roles", "CORY has two roles and a policy for each, which swap roles"
        if self.swap >= config.steps:
            never = "the two policies never swap roles"
            yield "algorithm.swap", f"is {self.swap} in a run of steps={config.steps}: {never}"
        starts = {(policy.model, policy.adapter) for policy in config.policies.values()}
        if len(starts) > 1:
            yield "policies", "CORY's two policies start from the same model and adapter"
        shared = config.credit.name == "aggregate" and config.credit.options["mode"] == "sum"
        if config.workflow.name == "cory" and not shared:
            yield "credit", "must be aggregate, with mode: sum: in CORY both roles get the sum of both rewards"

    def assign_roles(self, step: int, roles: Mapping[str, str]) -> Mapping[str, str]:
        if step // self.swap % 2 == 0:
            return roles
        return dict(zip(roles, reversed(list(roles.values())), strict=True))
