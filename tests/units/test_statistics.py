"""Laws of the statistics that evaluations are compared by."""

from __future__ import annotations

import random
from itertools import product
from math import erfc

import numpy
import pytest

from coterie.statistics import (
    auc,
    bootstrap_interval,
    compared_over_seeds,
    paired,
    sign_flip_test,
    students_p,
    students_t,
)


def test_auc_is_the_share_of_pairs_in_the_right_order() -> None:
    rng = random.Random(0)
    scores = [rng.randrange(10) for _ in range(60)]
    labels = [rng.random() < 0.4 for _ in scores]
    right = [s for s, label in zip(scores, labels, strict=True) if label]
    wrong = [s for s, label in zip(scores, labels, strict=True) if not label]
    pairs = [(a > b) + 0.5 * (a == b) for a in right for b in wrong]
    assert auc(scores, labels) == pytest.approx(sum(pairs) / len(pairs))


def test_auc_needs_both_kinds() -> None:
    assert auc([1, 2], [True, True]) is None
    assert auc([], []) is None
    assert auc([2, 1], [True, False]) == 1
    assert auc([1, 2], [True, False]) == 0
    assert auc([1, 1], [True, False]) == 0.5


def test_flipping_signs_is_mcnemars_exact_test_where_scores_are_0_or_1() -> None:
    """8 against 1 discordant pairs: 2·(1 + 9)/2⁹, as in tables of the binomial distribution."""
    assert sign_flip_test([1] * 8 + [-1] + [0] * 20) == pytest.approx(20 / 512)
    assert sign_flip_test([-1] * 8 + [1]) == pytest.approx(20 / 512)
    assert sign_flip_test([1, 1, 1, -1, -1, -1]) == 1
    assert sign_flip_test([0, 0]) == sign_flip_test([]) == 1


@pytest.mark.parametrize("seed", range(5))
def test_flipping_signs_counts_all_signs(seed: int) -> None:
    """Differences of means of three seeds, against all 2¹⁰ signs one by one."""
    rng = random.Random(seed)
    found = [rng.choice([-3, -2, -1, 0, 1, 2, 3]) / 3 for _ in range(10)]
    flipped = [
        abs(sum(sign * one for sign, one in zip(signs, found, strict=True))) for signs in product((1, -1), repeat=10)
    ]
    expected = sum(one >= abs(sum(found)) - 1e-9 for one in flipped) / 2**10
    assert sign_flip_test(found) == pytest.approx(expected)


def test_flipping_signs_takes_any_numbers_and_many() -> None:
    rng = random.Random(0)
    centered = [rng.gauss(0, 1) for _ in range(200)]
    shifted = [one + 0.1 for one in centered]
    z = abs(sum(shifted)) / sum(one**2 for one in shifted) ** 0.5  # the sum of the signs is nearly normal
    assert sign_flip_test(shifted) == pytest.approx(erfc(z / 2**0.5), rel=0.05)
    large = [1e5 * one for one in shifted]  # rewards of any size
    assert sign_flip_test(large) == pytest.approx(erfc(z / 2**0.5), rel=0.05)
    assert sign_flip_test([1.0] * 3000 + [-1.0] * 3000) == 1
    # 3100 against 2900 discordant tasks: the normal approximation with continuity correction.
    assert sign_flip_test([1.0] * 3100 + [-1.0] * 2900) == pytest.approx(erfc(199 / 6000**0.5 / 2**0.5), rel=0.01)


def test_students_t_is_that_of_the_tables() -> None:
    """The 97.5 % quantiles of one to six degrees of freedom: 12.706, 4.303, 3.182, 2.776, 2.571, 2.447."""
    for freedom, quantile in enumerate((12.706, 4.303, 3.182, 2.776, 2.571, 2.447), start=1):
        assert students_p(quantile, freedom) == pytest.approx(0.05, abs=1e-4)
        assert students_t(0.05, freedom) == pytest.approx(quantile, abs=1e-3)
    assert students_p(0, 3) == 1


def new_runs(rng: numpy.random.Generator, seeds: int, tasks: int, of_seed: float, of_task: float) -> numpy.ndarray:
    """Differences whose true mean is 0: a part of each seed, one of each task, and one of each cell."""
    parts = rng.normal(0, of_seed, (seeds, 1)), rng.normal(0, of_task, (1, tasks)), rng.normal(0, 1, (seeds, tasks))
    return sum(parts, numpy.zeros((seeds, tasks)))


@pytest.mark.parametrize(("of_seed", "of_task"), [(0.0, 0.0), (0.5, 0.0), (0.0, 2.0), (0.3, 2.0)])
def test_over_seeds_and_tasks_the_interval_misses_at_most_as_often_as_it_says(of_seed: float, of_task: float) -> None:
    rng, missed = numpy.random.default_rng(0), 0
    for _ in range(400):
        found = compared_over_seeds(new_runs(rng, 3, 40, of_seed, of_task))
        assert found is not None and (found.low > 0 or found.high < 0) == (found.p < 0.05)
        missed += found.p < 0.05
    assert missed <= 32  # 20 expected; more than 32 of 400 with probability 0.003


@pytest.mark.parametrize("of_seed", [0.0, 1.0])
def test_over_seeds_and_tasks_the_standard_error_is_that_of_two_way_clusters(of_seed: float) -> None:
    """Written from the definition: squares of the sums of seeds and of tasks, less those of single cells; at least the
    error of each alone."""
    data = new_runs(numpy.random.default_rng(1), 4, 30, of_seed, 1.0)
    seeds, tasks = data.shape
    off = data - data.mean()
    within_seeds = sum(row.sum() ** 2 for row in off) / (seeds * tasks) ** 2 * seeds / (seeds - 1)
    within_tasks = sum(column.sum() ** 2 for column in off.T) / (seeds * tasks) ** 2 * tasks / (tasks - 1)
    rest = data - data.mean(0) - data.mean(1)[:, None] + data.mean()
    cells = sum(float(one) ** 2 for one in rest.flat) / (seeds - 1) / (tasks - 1) / (seeds * tasks)
    variance = max(within_seeds, within_tasks, within_seeds + within_tasks - cells)
    found = compared_over_seeds(data)
    assert found is not None and found.difference == pytest.approx(data.mean())
    assert (found.high - found.low) / 2 == pytest.approx(3.182 * variance**0.5, rel=1e-3)
    assert of_seed == 0 or variance > max(within_seeds, within_tasks)


def test_over_seeds_and_tasks_nothing_is_said_of_one_seed_and_equal_arms_are_equal() -> None:
    assert compared_over_seeds(numpy.ones((1, 9))) is None and compared_over_seeds(numpy.ones((3, 1))) is None
    alike, apart = compared_over_seeds(numpy.zeros((2, 5))), compared_over_seeds(numpy.ones((2, 5)))
    assert alike is not None and (alike.low, alike.high, alike.p) == (0, 0, 1)
    assert apart is not None and (apart.low, apart.high, apart.p) == (1, 1, 0)


def test_with_several_seeds_the_interval_covers_their_variation_too() -> None:
    """Tasks that are alike: of three seeds, three times the lowest are drawn with probability 1/27, above 2.5 %."""
    assert bootstrap_interval(numpy.repeat([[0.3], [0.5], [0.7]], 50, 1)) == pytest.approx((0.3, 0.7))
    assert bootstrap_interval([0.5] * 50) == (0.5, 0.5)
    rows = numpy.array([[0.0, 1.0] * 200] * 3)
    assert bootstrap_interval(rows) == pytest.approx((0.451, 0.549), abs=0.003)


def test_a_bootstrap_interval_covers_the_mean_as_often_as_it_says() -> None:
    """Against the normal approximation, for 0-1 scores of 400 tasks: 0.5 ± 1.96·√(0.25/400)."""
    low, high = bootstrap_interval([0.0, 1.0] * 200)
    assert (low, high) == pytest.approx((0.451, 0.549), abs=0.003)
    assert bootstrap_interval([0.25] * 10) == (0.25, 0.25)


def test_pairs_are_compared_task_by_task() -> None:
    found = paired([1, 1, 1, 0], [0, 1, 0, 1])
    assert (found.tasks, found.difference, found.discordant) == (4, 0.25, 0.75)
    assert found.p == 1
    assert found.low < 0.25 < found.high
    alike = paired([1.0] * 50 + [0.0] * 50, [1.0] * 50 + [0.0] * 50)
    assert (alike.difference, alike.low, alike.high, alike.p) == (0, 0, 0, 1)
    assert paired([0.1 + 0.2], [0.3]).discordant == 0  # rounding is no difference
