"""PPO: a learned value says what was to be expected; credit flows back token by token over the team."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from coterie.algorithms.base import Algorithm, Count, CountFromZero, NotNegative, Positive, Share
from coterie.rl.advantages import gae, whitened
from coterie.rl.losses import value_loss
from coterie.types import Batch, Episode, Metrics, Scores, Turn


@dataclass(frozen=True, kw_only=True)
class Ppo(Algorithm):
    """Token-level GAE chained over all turns of an episode, whoever plays them. The value head sits on
    the policy's own trunk. (PPO: arXiv 1707.06347; chained over agents: MARFT, arXiv 2504.16129)"""

    gamma_token: Share = 1.0  # discount from a token to the next of its turn
    gamma_turn: Share = 1.0  # and from a turn's last token to the next turn's first
    lam_token: Share = 1.0
    lam_turn: Share = 0.95
    whiten: Literal["policy", "role", "batch"] | None = "policy"
    value_weight: Positive = 0.5
    value_clip: Positive | None = None
    value_huber: Positive | None = None  # an error beyond this counts linearly
    value_lr: NotNegative = 1e-3  # of the value head; the trunk moves at the policy's rate
    value_fits: Count = 1  # optimiser steps a step of critics that are not on a policy's trunk
    warmup: CountFromZero = 0  # steps in which only critics learn

    value_head: ClassVar[bool] = True
    chain: ClassVar[Literal["team", "role"]] = "team"

    def updates(self, step: int) -> bool:
        return step >= self.warmup

    def credit(self, episodes: list[Episode], memory: dict[str, Any]) -> Metrics:
        for episode in episodes:
            self._chain(episode)
        turns = [turn for episode in episodes for turn in episode.turns]
        metrics = _explained(turns)
        if self.whiten is not None:
            self._whiten(turns)
        return metrics

    def loss(self, scores: Scores, batch: Batch) -> Tensor:
        loss = super().loss(scores, batch)
        return loss if scores.values is None else loss + self.value_weight * self.value_loss(scores, batch)

    def value_loss(self, scores: Scores, batch: Batch) -> Tensor:
        """How wrong the values are, on a policy's trunk or of a critic: one number per token."""
        assert scores.values is not None
        return value_loss(scores.values, batch.values, batch.returns, self.value_clip, self.value_huber)

    def _chain(self, episode: Episode) -> None:
        """Advantages and returns of one episode.

        Turns without values, those of frozen policies, are environment: what they earn comes with the token before.
        """
        turns = [turn for turn in episode.turns if turn.values is not None]
        if not turns:
            return
        values = torch.cat([turn.values for turn in turns if turn.values is not None]).double()
        rewards = -torch.cat([self.token_penalty(turn) for turn in turns]).double()
        gamma, lam = torch.full_like(rewards, self.gamma_token), torch.full_like(rewards, self.lam_token)
        end = -1
        for turn in episode.turns:
            if turn.values is not None:
                end += len(turn.response_ids)
                gamma[end], lam[end] = self.gamma_turn, self.lam_turn
            if end >= 0:
                assert turn.earned is not None, "credit.assign comes before algorithm.credit"
                rewards[end] += turn.earned
        advantages, returns = gae(rewards, values, gamma, lam)
        sizes = [len(turn.response_ids) for turn in turns]
        for turn, a, r in zip(turns, advantages.split(sizes), returns.split(sizes), strict=True):
            turn.advantages, turn.returns = a.float(), r.float()

    def _whiten(self, turns: list[Turn]) -> None:
        turns = [turn for turn in turns if turn.advantages is not None]
        names = [{"policy": t.policy, "role": t.role, "batch": ""}[self.whiten or "batch"] for t in turns]
        number = {name: i for i, name in enumerate(dict.fromkeys(names))}
        sizes = [len(t.response_ids) for t in turns]
        if not turns:
            return
        scope = torch.cat([torch.full((n,), number[name]) for n, name in zip(sizes, names, strict=True)])
        flat = whitened(torch.cat([t.advantages for t in turns if t.advantages is not None]), scope)
        for turn, part in zip(turns, flat.split(sizes), strict=True):
            turn.advantages = part


def _explained(turns: list[Turn]) -> Metrics:
    """Mean value and the share of the returns' variance that the values foresaw."""
    judged = [t for t in turns if t.returns is not None and t.values is not None]
    if not judged:
        return {}
    returns = torch.cat([t.returns for t in judged if t.returns is not None])
    values = torch.cat([t.values for t in judged if t.values is not None])
    variance = returns.var(unbiased=False)
    explained = 1 - (returns - values).var(unbiased=False) / variance if variance > 1e-8 else torch.tensor(0.0)
    return {"value/mean": float(values.mean()), "value/explained": float(explained)}
