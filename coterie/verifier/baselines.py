"""Baselines of a verifier: the length of an answer, its log-prob under its policy, and agreement with other answers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from math import isnan

import numpy

from coterie.verifier.answers import Answer
from coterie.verifier.metrics import accuracy_within, within
from coterie.workflows.vote import ballot

NEWTON_STEPS = 25


def baselines(answers: Sequence[Answer]) -> dict[str, list[float]]:
    """The scores of each baseline, as probabilities. The baseline of log-probs is left out if some answers were not
    sampled, which have none."""
    logprobs = [answer.logprob for answer in answers]
    likely = {} if any(map(isnan, logprobs)) else {"mean log-prob": numpy.exp(logprobs).tolist()}
    return dict([by_length(answers)]) | likely | {"majority": by_majority(answers)}


def by_length(answers: Sequence[Answer]) -> tuple[str, list[float]]:
    """Score answers by length: short or long ones higher, whichever ranks more pairs within a question correctly.
    A logistic regression maps lengths to probabilities.

    Direction and regression are fitted to the answers on which they are measured, which favors this baseline.
    """
    lengths, labels = [float(len(answer.text)) for answer in answers], [answer.right for answer in answers]
    found = within(lengths, labels, [answer.question for answer in answers])
    if found and accuracy_within(found) < 0.5:
        return "length (shorter)", logistic([-length for length in lengths], labels)
    return "length (longer)", logistic(lengths, labels)


def by_majority(answers: Sequence[Answer]) -> list[float]:
    """The share of the answers to the same question that give the same final answer."""
    votes = Counter((answer.question, ballot(answer.text)) for answer in answers)
    voters = Counter(answer.question for answer in answers)
    return [votes[answer.question, ballot(answer.text)] / voters[answer.question] for answer in answers]


def logistic(values: Sequence[float], labels: Sequence[bool]) -> list[float]:
    """The probabilities of a logistic regression on one value, fitted by Newton's method; a larger value is never
    less likely."""
    x, y = numpy.asarray(values, dtype=float), numpy.asarray(labels, dtype=float)
    x = (x - x.mean()) / (x.std() or 1.0)
    inputs = numpy.stack([x, numpy.ones_like(x)], axis=1)  # [N, 2]
    weights = numpy.zeros(2)
    for _ in range(NEWTON_STEPS):
        p = 1 / (1 + numpy.exp(-inputs @ weights))
        # A small ridge: without it the slope of separable labels is infinite.
        curvature = inputs.T @ (inputs * (p * (1 - p))[:, None]) + 1e-3 * numpy.eye(2)
        weights = weights + numpy.linalg.solve(curvature, inputs.T @ (y - p) - 1e-3 * weights)
    weights[0] = max(weights[0], 1e-6)
    return (1 / (1 + numpy.exp(-inputs @ weights))).tolist()
