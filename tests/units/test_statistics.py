"""Laws of the statistics that evaluations are compared by."""

from __future__ import annotations

import random
from itertools import product
from math import erfc

import numpy
import pytest

from coterie.statistics import auc, bootstrap_interval, paired, sign_flip_test, t_test


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
    assert sign_flip_test([1.0] * 3000 + [-1.0] * 3000) == 1
    # 3100 against 2900 discordant tasks: the normal approximation with continuity correction.
    assert sign_flip_test([1.0] * 3100 + [-1.0] * 2900) == pytest.approx(erfc(199 / 6000**0.5 / 2**0.5), rel=0.01)


def test_students_t_is_that_of_the_tables() -> None:
    """The 97.5 % quantiles of one to six degrees of freedom: 12.706, 4.303, 3.182, 2.776, 2.571, 2.447."""
    for freedom, quantile in enumerate((12.706, 4.303, 3.182, 2.776, 2.571, 2.447), start=1):
        count = freedom + 1
        numbers = [1.0, -1.0] * (count // 2) + [0.0] * (count % 2)
        spread = (sum(one**2 for one in numbers) / freedom / count) ** 0.5
        assert t_test([one + quantile * spread for one in numbers]) == pytest.approx(0.05, abs=1e-4)
    assert t_test([0.5]) is None
    assert (t_test([0.5, 0.5]), t_test([0.0, 0.0])) == (0, 1)


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
