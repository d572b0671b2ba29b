"""Laws of the statistics that evaluations are compared by."""

from __future__ import annotations

import random

import pytest

from coterie.statistics import auc, bootstrap_interval, paired, sign_test


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


def test_the_sign_test_is_mcnemars_exact_test() -> None:
    """8 against 1 discordant pairs: 2·(1 + 9)/2⁹, as in tables of the binomial distribution."""
    assert sign_test(8, 9) == pytest.approx(20 / 512)
    assert sign_test(1, 9) == pytest.approx(20 / 512)
    assert sign_test(3, 6) == 1
    assert sign_test(0, 0) == 1


def test_a_bootstrap_interval_covers_the_mean_as_often_as_it_says() -> None:
    """Against the normal approximation, for 0-1 scores of 400 tasks: 0.5 ± 1.96·√(0.25/400)."""
    low, high = bootstrap_interval([0.0, 1.0] * 200)
    assert (low, high) == pytest.approx((0.451, 0.549), abs=0.003)
    assert bootstrap_interval([0.25] * 10) == (0.25, 0.25)


def test_pairs_are_compared_task_by_task() -> None:
    found = paired([1, 1, 1, 0], [0, 1, 0, 1])
    assert (found.tasks, found.difference, found.discordant) == (4, 0.25, 0.75)
    assert found.p == sign_test(2, 3) == 1
    assert found.low < 0.25 < found.high
    alike = paired([1.0] * 50 + [0.0] * 50, [1.0] * 50 + [0.0] * 50)
    assert (alike.difference, alike.low, alike.high, alike.p) == (0, 0, 0, 1)
