"""Confidence weighting: advantages are scaled by how confident a message was. Pure functions, each [N] → [N].

A message's confidence is the mean over its tokens of log|V| − H, V the vocabulary and H the entropy. Only its standard
score within a group is used, in which log|V|, a constant of the group, cancels; so it is left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from coterie.rl.advantages import FLAT, centered, group_mean
from coterie.rl.groups import GroupSample
from coterie.types import Episode, Turn

ConfidenceWeight = Literal["none", "confidence", "relative", "nll"]


def confidence_factor(sign: Tensor, entropy: Tensor, group: Tensor, alpha: float) -> Tensor:
    """exp(sign·α·z), z the standard score of the confidence; `sign` is that of the message's mean advantage."""
    return (sign * alpha * standard_score(-entropy, group)).exp()


def nll_factor(logprobs: Tensor, group: Tensor, alpha: float) -> Tensor:
    """exp(−α·z), z the standard score of minus the message's mean log-prob, for advantages of either sign."""
    return (-alpha * standard_score(-logprobs, group)).exp()


def standard_score(x: Tensor, group: Tensor) -> Tensor:
    """Zero mean and unit variance within each group, by the biased deviation; zero where all are equal."""
    differences = centered(x, group)
    deviation = group_mean(differences**2, group).sqrt()
    return torch.where(deviation < FLAT, 0.0, differences / deviation.clamp(min=FLAT))


def mean_entropy(turn: Turn) -> float | None:
    """Mean entropy of the turn's tokens; None where it was not computed."""
    return float(turn.entropy.double().mean()) if turn.entropy is not None and len(turn.entropy) else None


def mean_logprob(turn: Turn) -> float | None:
    """Mean log-prob of the turn's tokens, by the sampler; None for an empty turn."""
    return sum(turn.logprobs) / len(turn.logprobs) if turn.logprobs else None


def entropy_of_others(episode: Episode, turn: Turn) -> float | None:
    """Mean entropy of the other roles' turns in the same round; the turn's own where there is no other."""
    beside = [mean_entropy(t) for t in episode.turns if t.role != turn.role and t.round == turn.round]
    known = [entropy for entropy in beside if entropy is not None]
    return sum(known) / len(known) if known else mean_entropy(turn)


def confidence_weights(
    sign: Tensor, samples: Sequence[GroupSample], group: Tensor, kind: ConfidenceWeight, alpha: float
) -> Tensor:
    """The factor of each message's advantages; `sign` is that of their mean. A turn without entropy (or log-probs) gets
    factor 1 and is left out of its group's statistics."""
    score_of = mean_logprob if kind == "nll" else mean_entropy
    known = [score_of(sample.turns[0]) for sample in samples]
    scores = torch.tensor([0.0 if number is None else number for number in known], dtype=torch.float64)
    missing = torch.tensor([number is None for number in known], dtype=torch.bool)
    group = torch.where(missing, -1 - torch.arange(len(group)), group)  # each a group of its own: standard score 0
    if kind == "nll":
        return nll_factor(scores, group, alpha)
    if kind == "confidence":
        return confidence_factor(sign, scores, group, alpha)
    beside = [entropy_of_others(sample.episode, sample.turns[0]) for sample in samples]
    others = torch.tensor([0.0 if number is None else number for number in beside], dtype=torch.float64)
    return confidence_factor(sign, scores - others, group, alpha)
