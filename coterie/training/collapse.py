"""Detects collapse: constant replies, entropy collapse (near-zero entropy), constant rewards."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from coterie.config import Config
from coterie.types import Episode, Metrics

SIGNS = "collapse"  # key in a run's memory: for how many steps each sign has held
CREDIT = "collapse/credit"  # key in a run's memory: the credit of each role in the last step


def memory_of(config: Config) -> dict[str, Any]:
    """The initial counters of the collapse detector, kept in the memory of the run; empty if it is off."""
    return {} if config.collapse is None else {SIGNS: {}, CREDIT: {}}


def watch(
    config: Config, memory: dict[str, Any], episodes: Sequence[Episode], metrics: Metrics
) -> tuple[Metrics, list[str]]:
    """The metric `collapse`, and warnings: one per sign, when it has held for `collapse.steps` steps."""
    if config.collapse is None:
        return {}, []
    found = (*_constant_replies(config, episodes), *_low_entropy(config, metrics), *_constant_credit(memory, metrics))
    signs = dict(found)
    before = memory[SIGNS]
    memory[SIGNS] = {sign: before[sign] + 1 if sign in before else 1 for sign in signs}
    steps = config.collapse.steps
    warnings = [f"collapse? For {steps} steps {signs[sign]}" for sign, held in memory[SIGNS].items() if held == steps]
    return {"collapse": float(any(held >= steps for held in memory[SIGNS].values()))}, warnings


def _constant_replies(config: Config, episodes: Sequence[Episode]) -> Iterator[tuple[str, str]]:
    """Trained roles that give the same reply in nearly all of several turns."""
    assert config.collapse is not None
    trained = {name for name, policy in config.policies.items() if not policy.frozen}
    replies: dict[str, Counter[str]] = {}
    for turn in (turn for episode in episodes for turn in episode.turns if turn.policy in trained and turn.trainable):
        replies.setdefault(turn.role, Counter())[turn.text] += 1
    for role, texts in replies.items():
        text, count = texts.most_common(1)[0]
        if texts.total() > 1 and count > config.collapse.same * texts.total():
            yield f"same/{role}", f"{role} replied {text[:40]!r} in {count / texts.total():.0%} of its turns"


def _low_entropy(config: Config, metrics: Metrics) -> Iterator[tuple[str, str]]:
    """Policies with near-zero entropy."""
    assert config.collapse is not None
    for policy in config.policies:
        name = f"{policy}/entropy"
        if name in metrics and metrics[name] < config.collapse.entropy:
            yield name, f"the entropy of {policy} was below {config.collapse.entropy:g}"


def _constant_credit(memory: dict[str, Any], metrics: Metrics) -> Iterator[tuple[str, str]]:
    """One sign for all roles: each has exactly the mean credit of the step before."""
    credit = {name: value for name, value in metrics.items() if name.startswith("credit/")}
    before, memory[CREDIT] = memory[CREDIT], credit
    if credit and credit == before:
        yield "constant credit", "the mean credit of every role was exactly the same"
