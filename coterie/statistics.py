"""Statistics of evaluations: ROC AUC, and paired comparisons of two teams on the same tasks, also over seeds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import atan, cos, exp, fsum, lcm, lgamma, log, pi, sin, sqrt

import numpy

RESAMPLES = 10_000
FINEST = 1000  # the largest denominator of a score, such as a share of episodes; finer ones are rounded
LARGEST = 1_000_000  # the largest sum of differences, in multiples of their unit; beyond it they are rounded
SAME = 1e-9  # differences below are rounding
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
    p: float  # over tasks: `sign_flip_test`


def paired(first: Sequence[float], second: Sequence[float]) -> Paired:
    """Compare two arms task by task: `first[i]` and `second[i]` are their scores on task i."""
    off = numpy.array(first, dtype=float) - numpy.array(second, dtype=float)
    low, high = bootstrap_interval(off)
    return Paired(len(off), float(off.mean()), low, high, float((abs(off) > SAME).mean()), sign_flip_test(off))


def bootstrap_interval(values: Sequence[float] | numpy.ndarray) -> tuple[float, float]:
    """The 2.5 % and 97.5 % quantiles of the mean, over tasks drawn with replacement; the same at every call.

    With a row per seed, [seeds, tasks], seeds are drawn as well, the same tasks for each of them.
    """
    data, rng = numpy.atleast_2d(numpy.asarray(values, dtype=float)), numpy.random.default_rng(0)
    seeds, tasks = data.shape
    means = []
    for _ in range(RESAMPLES // CHUNK):
        drawn = rng.integers(tasks, size=(CHUNK, tasks))
        by_task = data[rng.integers(seeds, size=(CHUNK, seeds))].mean(1) if seeds > 1 else data.repeat(CHUNK, 0)
        means.append(numpy.take_along_axis(by_task, drawn, 1).mean(1))
    low, high = numpy.quantile(numpy.concatenate(means), [0.025, 0.975])
    return float(low), float(high)


def sign_flip_test(differences: Sequence[float] | numpy.ndarray) -> float:
    """Two-sided exact permutation test that paired differences have mean 0: the chance of a sum at least as far from 0,
    if each had the opposite sign with probability 1/2. With scores of 0 and 1 it is McNemar's exact test."""
    exact = [Fraction(float(one)).limit_denominator(FINEST) for one in differences if one]
    unit = min(Fraction(FINEST), Fraction(lcm(*(one.denominator for one in exact))))
    unit = min(unit, LARGEST / max(sum(map(abs, exact), Fraction(0)), Fraction(1)))
    steps = [step for one in exact if (step := round(one * unit))]  # the differences in multiples of 1/unit
    chances = numpy.ones(1)  # of the sums −n … n, for the differences so far
    for size, count in Counter(map(abs, steps)).items():
        longer = numpy.zeros(len(chances) + 2 * size * count)
        for k in range(count + 1):
            longer[2 * size * k :][: len(chances)] += _binomial(count, k) * chances
        chances = longer
    middle, far = len(chances) // 2, abs(sum(steps))
    return min(1.0, float(chances[: middle - far + 1].sum() + chances[middle + far :].sum()))


def _binomial(count: int, k: int) -> float:
    """The chance of k heads of `count` coins; by logarithms, because whole numbers of that size are slow."""
    return exp(lgamma(count + 1) - lgamma(k + 1) - lgamma(count - k + 1) - count * log(2))


@dataclass(frozen=True)
class OverSeeds:
    """How one arm differs from another where both were trained with several seeds."""

    difference: float  # mean over seeds and tasks of first minus second
    low: float  # 95 % interval, for new seeds and new tasks
    high: float
    p: float  # two-sided, for new seeds and new tasks


def compared_over_seeds(differences: numpy.ndarray) -> OverSeeds | None:
    """The mean of [seeds, tasks] differences, with a standard error clustered by seeds and by tasks; None with fewer
    than two of either.

    Seeds share their tasks, and tasks their seeds: the variances of the mean over each are added, and the variance of
    single cells, which is in both, is subtracted. Student's t with a degree of freedom fewer than seeds.
    """
    seeds, tasks = differences.shape
    if min(seeds, tasks) < 2:
        return None
    center, by_seed, by_task = differences.mean(), differences.mean(1), differences.mean(0)
    cells = differences - by_seed[:, None] - by_task + center
    of_seeds, of_tasks = by_seed.var(ddof=1) / seeds, by_task.var(ddof=1) / tasks
    of_cells = (cells**2).sum() / ((seeds - 1) * (tasks - 1)) / cells.size
    error = sqrt(max(of_seeds, of_tasks, of_seeds + of_tasks - of_cells))
    half = students_t(0.05, seeds - 1) * error
    p = students_p(abs(center) / error, seeds - 1) if error > 0 else float(abs(center) <= SAME)
    return OverSeeds(float(center), float(center - half), float(center + half), p)


def students_t(p: float, freedom: int) -> float:
    """The t of Student's distribution that is exceeded in size with probability p."""
    low, high = 0.0, 1.0
    while students_p(high, freedom) > p:
        low, high = high, 2 * high
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if students_p(middle, freedom) > p else (low, middle)
    return high


def students_p(t: float, freedom: int) -> float:
    """The probability that Student's t is at least `t` in size: the finite series for whole degrees of freedom."""
    angle = atan(t / sqrt(freedom))
    first = 2 if freedom % 2 == 0 else 3
    terms, term = [1.0] if freedom > 1 else [], 1.0
    for k in range(first, freedom, 2):
        term *= (k - 1) / k * cos(angle) ** 2
        terms.append(term)
    if freedom % 2 == 0:
        return max(0.0, 1 - sin(angle) * fsum(terms))
    return max(0.0, 1 - (angle + sin(angle) * cos(angle) * fsum(terms)) * 2 / pi)
