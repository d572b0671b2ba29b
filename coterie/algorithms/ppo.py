"""PPO with GAE (generalised advantage estimation) over token or turn values, chained over the turns of an episode.

Values come from a value head on the policy's trunk or from the config's `critics`. The recursion is
`rl.advantages.gae`; the clipped policy loss and the update loop are `Algorithm`'s.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from coterie.algorithms.base import Algorithm, Chain, CriticFactory
from coterie.limits import Count, CountFromZero, Positive, Share
from coterie.rl.advantages import first_of_turn, gae, whitened
from coterie.rl.losses import value_loss
from coterie.types import Batch, Episode, Metrics, Scores, Turn, ValueEstimator


class TurnEstimate(NamedTuple):
    """GAE's result for one turn. S: the turn's tokens; with `level: turn`, one step for the whole turn."""

    turn: Turn
    values: Tensor  # [S]
    advantages: Tensor  # [S]
    returns: Tensor  # [S]


@dataclass(frozen=True, kw_only=True)
class Ppo(Algorithm):
    """PPO with GAE chained over the turns of all roles: by token, or with `level: turn` by message.
    Where late turns depend on early ones; tokens for short turns, turns for long ones. One episode per task is enough.
    Costs a forward pass for values, by a value head or `critics`. (arXiv 1707.06347; MARFT, arXiv 2504.16129)"""

    value_weight: Positive = 0.5  # weight of the value head's loss beside its policy's
    value_clip: Positive | None = None  # clip of the value around its old one; null: off
    value_huber: Positive | None = None  # Huber loss: an error beyond this counts linearly; null: squared
    value_lr: Positive = 1e-3  # learning rate of the value head; the trunk keeps its policy's
    value_fits: Count = 1  # optimizer steps per step of critics that are separate models
    warmup: CountFromZero = 0  # steps in which only separate critics train
    gamma_token: Share = 1.0  # discount from a token to the next of its turn
    gamma_turn: Share = 1.0  # discount from a turn's last token to the next turn's first
    lam_token: Share = 1.0  # GAE's λ within a turn
    lam_turn: Share = 0.95  # GAE's λ from a turn to the next
    # whiten advantages per policy, per role or over the batch; null: not
    whiten: Literal["policy", "role", "batch"] | None = "policy"

    chain: ClassVar[Chain] = "team"
    needs_values: ClassVar[bool] = True
    not_in_advantage: ClassVar[frozenset[str]] = frozenset(
        (Algorithm.not_in_advantage - {"level"})
        | {"value_weight", "value_clip", "value_huber", "value_lr", "value_fits", "warmup"}
    )

    def compute_advantages(self, episodes: list[Episode], memory: dict[str, Any]) -> Metrics:
        estimates = list(self.estimates(episodes))
        for estimate in estimates:  # dropped turns too: critics train on all
            size = len(estimate.turn.response_ids)  # with `level: turn` one number is repeated at each token
            estimate.turn.returns = estimate.returns.float().expand(size)
        trained = [estimate for estimate in estimates if estimate.turn.dropped is None]
        for estimate, advantages in zip(trained, self._whitened(trained), strict=True):
            estimate.turn.advantages = advantages.float().expand(len(estimate.turn.response_ids))
        return _value_metrics(estimates)

    def estimates(self, episodes: Sequence[Episode]) -> Iterator[TurnEstimate]:
        """GAE along every chain of every episode."""
        for turns in [turns for episode in episodes for turns in chains(episode, self.chain)]:
            yield from self.chain_gae(turns, [0.0] * len(turns))

    def chain_gae(self, turns: Sequence[Turn], other_values: Sequence[float]) -> Iterator[TurnEstimate]:
        """GAE along one chain of turns. `other_values` is added to each turn's values: the other roles' share (VDN).

        Turns of frozen policies have no values and count as environment: their credit goes to the step before them.
        """
        valued, values, others, rewards = [], [], [], []
        for turn, other in zip(turns, other_values, strict=True):
            if turn.values is not None:
                penalty = self.token_kl_penalty(turn).double()
                valued.append(turn)
                values.append((turn.values[:1] if self.level == "turn" else turn.values).double())
                others.append(torch.full_like(values[-1], other))
                rewards.append(-penalty.sum(0, keepdim=True) if self.level == "turn" else -penalty)
            if rewards:
                assert turn.credit is not None, "credit.assign comes before compute_advantages"
                rewards[-1][-1] += turn.credit
        if not valued:
            return
        sizes = [len(column) for column in values]
        ends = torch.tensor(sizes).cumsum(0) - 1
        gamma, lam = (torch.full((sum(sizes),), x, dtype=torch.float64) for x in (self.gamma_token, self.lam_token))
        gamma[ends], lam[ends] = self.gamma_turn, self.lam_turn
        team_values = torch.cat(values) + torch.cat(others)
        advantages, returns = gae(torch.cat(rewards), team_values, gamma, lam)
        own_returns = (returns - torch.cat(others)).split(sizes)
        yield from map(TurnEstimate, valued, values, advantages.split(sizes), own_returns)

    def _whitened(self, estimates: list[TurnEstimate]) -> Sequence[Tensor]:
        """Advantages with zero mean and unit variance over each policy, each role or the batch."""
        if self.whiten is None or not estimates:
            return [estimate.advantages for estimate in estimates]
        scopes = [{"policy": e.turn.policy, "role": e.turn.role, "batch": ""}[self.whiten] for e in estimates]
        number = {scope: i for i, scope in enumerate(dict.fromkeys(scopes))}
        sizes = [len(estimate.advantages) for estimate in estimates]
        index = torch.tensor([number[scope] for scope in scopes]).repeat_interleave(torch.tensor(sizes))
        return whitened(torch.cat([estimate.advantages for estimate in estimates]), index).split(sizes)

    def loss(self, scores: Scores, batch: Batch) -> Tensor:
        loss = super().loss(scores, batch)
        return loss if scores.values is None else loss + self.value_weight * self.value_loss(scores, batch)

    def value_loss(self, scores: Scores, batch: Batch) -> Tensor:
        """Error of a value head or a critic against the returns, one number per token.

        With `level: turn` a turn has one value, at its first token, and its error is repeated at each of its tokens, so
        that it counts as much as the turn does.
        """
        values, old = scores.values, batch.values
        assert values is not None
        if self.level == "turn":
            values, old = first_of_turn(values, batch.turn), first_of_turn(old, batch.turn)
        return value_loss(values, old, batch.returns, self.value_clip, self.value_huber)

    def trains_policies(self, step: int) -> bool:
        return step >= self.warmup

    @property
    def value_head_lr(self) -> float | None:
        return self.value_lr

    def make_critic(self, factory: CriticFactory) -> ValueEstimator | None:
        return factory.critics(self.value_loss, self.loss_weights, self.value_lr, self.value_fits)

    def problems(self, config: Any) -> Iterator[tuple[str, str]]:
        yield from super().problems(config)
        changed = {f.name for f in fields(self) if getattr(self, f.name) != f.default}
        unused = self._unused_options(has_critics=bool(config.critics) or self.central_critic)
        yield from ((f"algorithm.{key}", unused[key]) for key in unused if key in changed)
        if self.warmup >= config.steps:
            yield "algorithm.warmup", f"is {self.warmup} in a run of steps={config.steps}: no policy would ever train"
        for key in ("gamma_token", "lam_token"):
            if self.level == "turn" and key in changed:
                yield f"algorithm.{key}", "has no effect with level: turn; gamma_turn and lam_turn are between turns"

    def _unused_options(self, has_critics: bool) -> dict[str, str]:
        """Value options that would have no effect, and why."""
        unused: dict[str, str] = {}
        if has_critics:
            unused["value_weight"] = "has no effect with critics, whose loss stands alone"
        else:
            unused["value_fits"] = "needs `critics`: a value head takes the optimizer steps of its policy"
            unused["warmup"] = "needs `critics`: a value head trains with its policy, and would wait with it"
        if self.value_fits == 1 if has_critics else self.single_update:
            unused["value_clip"] = "has no effect with one optimizer step per step: the value is still the old one"
        return unused


def chains(episode: Episode, chain: Chain) -> list[list[Turn]]:
    """The sequences of turns that GAE runs along: the whole team's, or one per role."""
    by_role: dict[str, list[Turn]] = {}
    for turn in episode.turns:
        by_role.setdefault(turn.role if chain == "role" else "", []).append(turn)
    return list(by_role.values())


def _value_metrics(estimates: list[TurnEstimate]) -> Metrics:
    """Mean value, and explained variance: the share of the returns' variance that the values predict."""
    if not estimates:
        return {}
    returns, values = torch.cat([e.returns for e in estimates]), torch.cat([e.values for e in estimates])
    variance = returns.var(unbiased=False)
    explained = 1 - (returns - values).var(unbiased=False) / variance if variance > 1e-8 else torch.tensor(0.0)
    return {"value/mean": float(values.mean()), "value/explained": float(explained)}
