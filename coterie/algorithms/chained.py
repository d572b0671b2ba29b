"""Advantages along chains of turns: what came later flows back to what made it possible."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from coterie.algorithms.base import Chain
from coterie.algorithms.valued import Valued
from coterie.limits import Share
from coterie.rl.advantages import gae, whitened
from coterie.types import Episode, Metrics, Turn


class Judged(NamedTuple):
    """What a turn's steps were worth. Its tokens are its steps; with `level: turn` it is one step itself."""

    turn: Turn
    values: Tensor  # [S], as is everything here
    advantages: Tensor
    returns: Tensor


@dataclass(frozen=True, kw_only=True)
class Chained(Valued):
    """The estimator (GAE) that all algorithms with values share."""

    gamma_token: Share = 1.0  # discount from a token to the next of its turn
    gamma_turn: Share = 1.0  # and from a turn's last token to the next turn's first
    lam_token: Share = 1.0
    lam_turn: Share = 0.95
    whiten: Literal["policy", "role", "batch"] | None = "policy"

    not_in_advantage: ClassVar[frozenset[str]] = Valued.not_in_advantage - {"level"}

    def problems(self, config: Any) -> Iterator[tuple[str, str]]:
        yield from super().problems(config)
        one = "has no effect with level: turn, where a turn is one step; gamma_turn and lam_turn are between turns"
        for key in ("gamma_token", "lam_token"):
            if self.level == "turn" and getattr(self, key) != getattr(type(self), key):
                yield f"algorithm.{key}", one

    def compute_advantages(self, episodes: list[Episode], memory: dict[str, Any]) -> Metrics:
        judged = list(self.judged(episodes))
        for found in judged:  # dropped turns too: critics learn from all
            size = len(found.turn.response_ids)  # what a turn is worth as a whole stands at each of its tokens
            found.turn.returns = found.returns.float().expand(size)
        learned = [found for found in judged if found.turn.dropped is None]
        for found, advantages in zip(learned, self._whitened(learned), strict=True):
            found.turn.advantages = advantages.float().expand(len(found.turn.response_ids))
        return _explained(judged)

    def judged(self, episodes: Sequence[Episode]) -> Iterator[Judged]:
        """The turns of a step, each chain of them judged by itself."""
        for turns in [turns for episode in episodes for turns in chains(episode, self.chain)]:
            yield from self.chained(turns, [0.0] * len(turns))

    def chained(self, turns: Sequence[Turn], beside: Sequence[float]) -> Iterator[Judged]:
        """Advantages along one chain. `beside` is added to a turn's values to make them the whole team's.

        Turns without values, those of frozen policies, are environment: what they earn comes with the step before.
        """
        valued, values, others, rewards = [], [], [], []
        for turn, theirs in zip(turns, beside, strict=True):
            if turn.values is not None:
                penalty = self.token_penalty(turn).double()
                valued.append(turn)
                values.append((turn.values[:1] if self.level == "turn" else turn.values).double())
                others.append(torch.full_like(values[-1], theirs))
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
        team = torch.cat(values) + torch.cat(others)
        advantages, returns = gae(torch.cat(rewards), team, gamma, lam)
        yield from map(Judged, valued, values, advantages.split(sizes), (returns - torch.cat(others)).split(sizes))

    def _whitened(self, judged: list[Judged]) -> Sequence[Tensor]:
        """The advantages, by default with the same spread for every policy."""
        if self.whiten is None or not judged:
            return [found.advantages for found in judged]
        names = [{"policy": f.turn.policy, "role": f.turn.role, "batch": ""}[self.whiten] for f in judged]
        number = {name: i for i, name in enumerate(dict.fromkeys(names))}
        sizes = [len(found.advantages) for found in judged]
        scope = torch.tensor([number[name] for name in names]).repeat_interleave(torch.tensor(sizes))
        return whitened(torch.cat([found.advantages for found in judged]), scope).split(sizes)


def chains(episode: Episode, chain: Chain) -> list[list[Turn]]:
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
