"""Notices a run that has collapsed: everyone says the same, nobody doubts, nothing that is earned changes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from coterie.config import Config
from coterie.types import Episode, Metrics

SIGNS = "collapse"  # in a run's memory: for how many steps each sign has been seen
EARNED = "collapse/credit"  # and what roles earned in the last step


def memory_of(config: Config) -> dict[str, Any]:
    """What a fresh run remembers of the signs of collapse."""
    return {} if config.collapse is None else {SIGNS: {}, EARNED: {}}


def watch(
    config: Config, memory: dict[str, Any], episodes: Sequence[Episode], metrics: Metrics
) -> tuple[Metrics, list[str]]:
    """`collapse`, and what to tell the user: each sign once, when it has held for long enough."""
    if config.collapse is None:
        return {}, []
    seen = dict([*_same(config, episodes), *_certain(config, metrics), *_still(memory, metrics)])
    before = memory[SIGNS]
    memory[SIGNS] = {sign: before[sign] + 1 if sign in before else 1 for sign in seen}
    steps = config.collapse.steps
    news = [f"collapse? For {steps} steps {seen[sign]}" for sign, held in memory[SIGNS].items() if held == steps]
    return {"collapse": float(any(held >= steps for held in memory[SIGNS].values()))}, news


def _same(config: Config, episodes: Sequence[Episode]) -> Iterator[tuple[str, str]]:
    """Roles that nearly always say the same, in more than one turn; those of frozen policies may."""
    assert config.collapse is not None
    learning = {policy for policy, it in config.policies.items() if not it.frozen}
    said: dict[str, Counter[str]] = {}
    for turn in (turn for episode in episodes for turn in episode.turns if turn.policy in learning and turn.trainable):
        said.setdefault(turn.role, Counter())[turn.text] += 1
    for role, texts in said.items():
        text, count = texts.most_common(1)[0]
        if texts.total() > 1 and count > config.collapse.same * texts.total():
            yield f"same/{role}", f"{role} has said {text[:40]!r} in {count / texts.total():.0%} of its turns"


def _certain(config: Config, metrics: Metrics) -> Iterator[tuple[str, str]]:
    """Policies that have no doubt left."""
    assert config.collapse is not None
    for policy in config.policies:
        name = f"{policy}/entropy"
        if name in metrics and metrics[name] < config.collapse.entropy:
            yield name, f"{policy}'s entropy has been below {config.collapse.entropy:g}"


def _still(memory: dict[str, Any], metrics: Metrics) -> Iterator[tuple[str, str]]:
    """Whether every role earned exactly what it earned in the step before."""
    earned = {name: value for name, value in metrics.items() if name.startswith("credit/")}
    before, memory[EARNED] = memory[EARNED], earned
    if earned and earned == before:
        yield "still", "every role has earned exactly the same"
