"""PPO: a learned value says what was to be expected; credit flows back over the team, by tokens or by turns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from coterie.algorithms.base import Algorithm, Count, CountFromZero, Positive, Share
from coterie.rl.advantages import first_of_turn, gae, whitened
from coterie.rl.losses import value_loss
from coterie.types import Batch, Episode, Metrics, Scores, Turn


class Judged(NamedTuple):
    """What a turn's steps were worth. Its tokens are its steps; with `level: turn` it is one step itself."""

    turn: Turn
    values: Tensor  # [S], as is everything here
    advantages: Tensor
    returns: Tensor


@dataclass(frozen=True, kw_only=True)
class Ppo(Algorithm):
    """PPO whose advantages (GAE) are chained over all turns of an episode, whoever plays them: token by token, or
    with `level: turn` message by message, with one value, one advantage and one ratio for each.
    Use it where a team works on one answer and late turns depend on early ones; tokens for short turns, turns for
    long ones. It trains with one episode per task.
    Costs one more forward a step to read values; the value head sits on the policy's own trunk, or in `critics`.
    (PPO: arXiv 1707.06347; chained over agents, by token and by action: MARFT, arXiv 2504.16129)"""

    gamma_token: Share = 1.0  # discount from a token to the next of its turn
    gamma_turn: Share = 1.0  # and from a turn's last token to the next turn's first
    lam_token: Share = 1.0
    lam_turn: Share = 0.95
    whiten: Literal["policy", "role", "batch"] | None = "policy"
    value_weight: Positive = 0.5  # of a value head's loss beside its policy's
    value_clip: Positive | None = None
    value_huber: Positive | None = None  # an error beyond this counts linearly
    value_lr: Positive = 1e-3  # of the value head; the trunk moves at its own rate
    value_fits: Count = 1  # optimiser steps a step of critics that are not on a policy's trunk
    warmup: CountFromZero = 0  # steps in which only such critics learn

    value_head: ClassVar[bool] = True
    chain: ClassVar[Literal["team", "role"]] = "team"

    def problems(self, config: Any) -> Iterator[tuple[str, str]]:
        yield from super().problems(config)
        yield from _without_effect(self, has_critics=bool(config.critics) or self.central)
        if self.warmup >= config.steps:
            yield "algorithm.warmup", f"is {self.warmup} in a run of steps={config.steps}: no policy would ever learn"

    def updates(self, step: int) -> bool:
        return step >= self.warmup

    def credit(self, episodes: list[Episode], memory: dict[str, Any]) -> Metrics:
        judged = [found for episode in episodes for found in self.judged(episode)]
        white = self._whitened(judged)
        for (turn, _, _, returns), advantages in zip(judged, white, strict=True):
            size = len(turn.response_ids)  # what a turn is worth as a whole stands at each of its tokens
            turn.advantages, turn.returns = advantages.float().expand(size), returns.float().expand(size)
        return _explained(judged) | {"absent": float(_absent(episodes, judged))}

    def judged(self, episode: Episode) -> Iterator[Judged]:
        """The turns of one episode, each chain of them judged by itself."""
        for turns in chains(episode, self.chain):
            yield from self.chained(turns)

    def chained(self, turns: Sequence[Turn], beside: float = 0.0) -> Iterator[Judged]:
        """Advantages along one chain. `beside` is added to values to make them the whole team's.

        Turns without values, those of frozen policies, are environment: what they earn comes with the step before.
        """
        valued, values, rewards = [], [], []
        for turn in turns:
            if turn.values is not None:
                penalty = self.token_penalty(turn).double()
                valued.append(turn)
                values.append((turn.values[:1] if self.level == "turn" else turn.values).double())
                rewards.append(-penalty.sum(0, keepdim=True) if self.level == "turn" else -penalty)
            if rewards:
                assert turn.earned is not None, "credit.assign comes before algorithm.credit"
                rewards[-1][-1] += turn.earned
        if not valued:
            return
        sizes = [len(column) for column in values]
        ends = torch.tensor(sizes).cumsum(0) - 1
        gamma, lam = (torch.full((sum(sizes),), x, dtype=torch.float64) for x in (self.gamma_token, self.lam_token))
        gamma[ends], lam[ends] = self.gamma_turn, self.lam_turn
        advantages, returns = gae(torch.cat(rewards), torch.cat(values) + beside, gamma, lam)
        yield from map(Judged, valued, values, advantages.split(sizes), (returns - beside).split(sizes))

    def _whitened(self, judged: list[Judged]) -> Sequence[Tensor]:
        """The advantages, by default with the same spread for every policy."""
        if self.whiten is None or not judged:
            return [found.advantages for found in judged]
        names = [{"policy": f.turn.policy, "role": f.turn.role, "batch": ""}[self.whiten] for f in judged]
        number = {name: i for i, name in enumerate(dict.fromkeys(names))}
        sizes = [len(found.advantages) for found in judged]
        scope = torch.tensor([number[name] for name in names]).repeat_interleave(torch.tensor(sizes))
        return whitened(torch.cat([found.advantages for found in judged]), scope).split(sizes)

    def loss(self, scores: Scores, batch: Batch) -> Tensor:
        loss = super().loss(scores, batch)
        return loss if scores.values is None else loss + self.value_weight * self.value_loss(scores, batch)

    def value_loss(self, scores: Scores, batch: Batch) -> Tensor:
        """How wrong the values are, on a policy's trunk or of a critic: one number per token.

        A whole turn has one value, said before its first token, and how wrong that is stands at each of its tokens:
        then it counts as much as the turn does.
        """
        values, old = scores.values, batch.values
        assert values is not None
        if self.level == "turn":
            values, old = first_of_turn(values, batch.turn), first_of_turn(old, batch.turn)
        return value_loss(values, old, batch.returns, self.value_clip, self.value_huber)


def chains(episode: Episode, chain: Literal["team", "role"]) -> list[list[Turn]]:
    """The turns along which reward flows back: all of them, or each role's own."""
    by_role: dict[str, list[Turn]] = {}
    for turn in episode.turns:
        by_role.setdefault(turn.role if chain == "role" else "", []).append(turn)
    return list(by_role.values())


def _explained(judged: list[Judged]) -> Metrics:
    """Mean value and the share of the returns' variance that the values foresaw."""
    if not judged:
        return {}
    returns, values = torch.cat([f.returns for f in judged]), torch.cat([f.values for f in judged])
    variance = returns.var(unbiased=False)
    explained = 1 - (returns - values).var(unbiased=False) / variance if variance > 1e-8 else torch.tensor(0.0)
    return {"value/mean": float(values.mean()), "value/explained": float(explained)}


def _absent(episodes: list[Episode], judged: list[Judged]) -> int:
    """How often a role that learns had nothing to say in an episode."""
    roles = {found.turn.role for found in judged}
    there = {id(found.turn) for found in judged}
    return sum(len(roles - {t.role for t in episode.turns if id(t) in there}) for episode in episodes)


def _without_effect(it: Ppo, has_critics: bool) -> Iterator[tuple[str, str]]:
    """Options of values that nothing would come of."""
    set_by_hand = {f.name for f in fields(it) if getattr(it, f.name) != f.default}
    unused: dict[str, str] = {}
    if it.level == "turn":
        one = "has no effect with level: turn, where a turn is one step; gamma_turn and lam_turn are between turns"
        unused |= {"gamma_token": one, "lam_token": one}
    if has_critics:
        unused["value_weight"] = "has no effect with critics of their own, whose loss stands alone"
    else:
        unused["value_fits"] = "needs `critics`: a value head learns with its policy, as often as that does"
        unused["warmup"] = "needs `critics`: a value head learns with its policy, and would wait with it"
    if it.value_fits == 1 if has_critics else it.once:
        unused["value_clip"] = "has no effect with one optimiser step a step: the value is still the old one"
    yield from ((f"algorithm.{key}", unused[key]) for key in unused if key in set_by_hand)
