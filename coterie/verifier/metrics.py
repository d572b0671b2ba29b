"""How good scores are: AUC across questions, AUC and accuracy within a question, and calibration (ECE).

A verifier that only knows how hard a question is has a high AUC across questions. Within a question, where it is used,
its AUC and its accuracy are 0.5.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy

from coterie.statistics import auc, bootstrap_interval, mean

BINS = 10  # of equal width, for the calibration


@dataclass(frozen=True)
class Measures:
    """How well scores tell right answers from wrong ones."""

    auc: float  # of all answers, across questions
    auc_within: float  # the mean over questions that have right and wrong answers
    within_low: float  # its 95 % bootstrap interval over these questions
    within_high: float
    accuracy_within: float  # share of the pairs of a right and a wrong answer to one question that are ranked rightly
    ece: float  # expected calibration error
    questions: int  # that have right and wrong answers
    answers: int


@dataclass(frozen=True)
class Bin:
    """The answers whose score is in one interval of a reliability plot."""

    score: float  # their mean score
    right: float  # the share of them that is right
    answers: int


def measures(scores: Sequence[float], labels: Sequence[bool], questions: Sequence[Hashable]) -> Measures:
    """Measure probabilities; at least one question must have right and wrong answers."""
    found, across = within(scores, labels, questions), auc(scores, labels)
    assert found and across is not None, "no question has right and wrong answers"
    each = [one for one, _ in found]
    low, high = bootstrap_interval(each)
    return Measures(
        auc=across,
        auc_within=mean(each),
        within_low=low,
        within_high=high,
        accuracy_within=accuracy_within(found),
        ece=ece(scores, labels),
        questions=len(each),
        answers=len(scores),
    )


def within(scores: Sequence[float], labels: Sequence[bool], questions: Sequence[Hashable]) -> list[tuple[float, int]]:
    """The AUC within each question that has right and wrong answers, and its number of right-wrong pairs."""
    groups: dict[Hashable, list[int]] = defaultdict(list)
    for i, question in enumerate(questions):
        groups[question].append(i)
    found = []
    for group in groups.values():
        own = [labels[i] for i in group]
        area = auc([scores[i] for i in group], own)
        if area is not None:
            found.append((area, sum(own) * (len(own) - sum(own))))
    return found


def accuracy_within(found: Sequence[tuple[float, int]]) -> float:
    """The share of all right-wrong pairs within questions that are ranked rightly; a tie counts half."""
    return mean([area * pairs for area, pairs in found]) / mean([float(pairs) for _, pairs in found])


def reliability(scores: Sequence[float], labels: Sequence[bool], bins: int = BINS) -> list[Bin]:
    """The bins of equal width over [0, 1] that hold answers, in order."""
    p, right = numpy.asarray(scores, dtype=float), numpy.asarray(labels, dtype=float)
    place = numpy.minimum((p * bins).astype(int), bins - 1)  # a score of 1 belongs to the last bin
    held = [place == i for i in range(bins) if (place == i).any()]
    return [Bin(float(p[own].mean()), float(right[own].mean()), int(own.sum())) for own in held]


def ece(scores: Sequence[float], labels: Sequence[bool], bins: int = BINS) -> float:
    """Expected calibration error: the mean over answers of |score − share right| of their bin."""
    found = reliability(scores, labels, bins)
    return sum(one.answers * abs(one.score - one.right) for one in found) / len(scores)
