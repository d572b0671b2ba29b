"""Statistics of evaluations: ROC AUC, and paired comparisons of two teams on the same tasks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import comb, fsum

import numpy

RESAMPLES = 10_000
CHUNK = 500  # resamples at once: [CHUNK, tasks] indices are held in memory


def mean(numbers: Sequence[float]) -> float:
    """By fsum, whose result does not depend on the order."""
    return fsum(numbers) / len(numbers)


def standard_error(by_task: Sequence[Sequence[float]]) -> float | None:
    """Of the mean over tasks, each with its own mean; None for fewer than two. Episodes of one task are not
    independent, so tasks are the unit."""
    means = [mean(numbers) for numbers in by_task if numbers]
    if len(means) < 2:
        return None
    center = mean(means)
    return (fsum((one - center) ** 2 for one in means) / (len(means) - 1) / len(means)) ** 0.5


def auc(scores: Sequence[float], labels: Sequence[bool]) -> float | None:
    """The chance that a right item scores above a wrong one, ties counting half; None without both kinds."""
    right = numpy.array([score for score, label in zip(scores, labels, strict=True) if label])
    wrong = numpy.sort([score for score, label in zip(scores, labels, strict=True) if not label])
    if not len(right) or not len(wrong):
        return None
    below = numpy.searchsorted(wrong, right, side="left")  # wrong items that score less than each right one
    not_above = numpy.searchsorted(wrong, right, side="right")
    return float((below + not_above).mean() / 2 / len(wrong))


@dataclass(frozen=True)
class Paired:
    """How one arm differs from another on the same tasks."""

    tasks: int
    difference: float  # mean over tasks of first minus second
    low: float  # 95 % bootstrap interval over tasks
    high: float
    discordant: float  # share of tasks on which the two differ
    p: float  # two-sided exact sign test over those tasks; McNemar's exact test where scores are 0 or 1


def paired(first: Sequence[float], second: Sequence[float]) -> Paired:
    """Compare two arms task by task: `first[i]` and `second[i]` are their scores on task i."""
    off = numpy.array(first, dtype=float) - numpy.array(second, dtype=float)
    differ = off[off != 0]
    low, high = bootstrap_interval(off)
    p = sign_test(int((differ > 0).sum()), len(differ))
    return Paired(len(off), float(off.mean()), low, high, len(differ) / len(off), p)


def bootstrap_interval(values: Sequence[float] | numpy.ndarray) -> tuple[float, float]:
    """The 2.5 % and 97.5 % quantiles of the mean, over tasks drawn with replacement; the same at every call."""
    data, rng = numpy.asarray(values, dtype=float), numpy.random.default_rng(0)
    draws = (rng.integers(len(data), size=(CHUNK, len(data))) for _ in range(RESAMPLES // CHUNK))
    means = numpy.concatenate([data[drawn].mean(1) for drawn in draws])
    low, high = numpy.quantile(means, [0.025, 0.975])
    return float(low), float(high)


def sign_test(wins: int, trials: int) -> float:
    """Two-sided exact binomial test of a fair coin; over discordant pairs it is McNemar's exact test."""
    tail = sum(comb(trials, k) for k in range(min(wins, trials - wins) + 1))
    return min(1.0, 2 * tail / 2**trials)
