"""Metrics of a step's turns by policy: response length, truncated share, mean and deviation of the advantages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from coterie.types import Episode, Learner, Metrics, Turn


def turn_metrics(episodes: Sequence[Episode], learners: Mapping[str, Learner]) -> Metrics:
    """For every policy that trains and has turns, after advantages were computed."""
    by_policy: dict[str, list[Turn]] = {policy: [] for policy, learner in learners.items() if not learner.frozen}
    for turn in (turn for episode in episodes for turn in episode.turns if turn.trainable):
        if turn.policy in by_policy:
            by_policy[turn.policy].append(turn)
    found = {policy: _lengths(turns) | _advantages(turns) for policy, turns in by_policy.items()}
    return {f"{policy}/{name}": value for policy, metrics in found.items() for name, value in metrics.items()}


def _lengths(turns: Sequence[Turn]) -> Metrics:
    """Mean length in tokens, and the share of truncated turns."""
    if not turns:
        return {}
    lengths, truncated = sum(len(turn.response_ids) for turn in turns), sum(turn.stop == "length" for turn in turns)
    return {"response_length": lengths / len(turns), "truncated": truncated / len(turns)}


def _advantages(turns: Sequence[Turn]) -> Metrics:
    """Over all tokens that are trained on."""
    known = [turn.advantages for turn in turns if turn.advantages is not None and len(turn.advantages)]
    if not known:
        return {}
    tokens = torch.cat(known).double()
    return {"advantage_mean": float(tokens.mean()), "advantage_std": float(tokens.std(unbiased=False))}
