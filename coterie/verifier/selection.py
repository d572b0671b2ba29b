"""Best-of-k selection by verifier scores, compared with the majority vote of the same k answers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from coterie.statistics import Paired, mean, paired
from coterie.verifier.answers import Answer
from coterie.workflows.verified_vote import elected
from coterie.workflows.vote import majority

Scored = Sequence[tuple[Answer, float]]  # the answers to a question with their scores, in the order of sampling


@dataclass(frozen=True)
class Selection:
    """The share of questions answered rightly when one of k answers is chosen."""

    k: int
    questions: int  # with at least k answers
    single: float  # a random answer: the mean accuracy of the k (pass@1)
    majority: float  # the most frequent answer
    weighted: float  # the answer with the largest sum of scores (score-weighted vote)
    best: float  # the answer with the highest score (best-of-k)
    any: float  # any right answer among the k: the upper bound of every selection (pass@k)
    difference: Paired  # weighted against majority, by question


def selections(answers: Sequence[Answer], scores: Sequence[float]) -> Iterator[Selection]:
    """Selections of k = 2, 4, 8 … answers, while more than half of the questions have k answers."""
    questions: dict[str, list[tuple[Answer, float]]] = {}
    for answer, score in zip(answers, scores, strict=True):
        questions.setdefault(answer.question, []).append((answer, score))
    k = 2
    while len(enough := [own[:k] for own in questions.values() if len(own) >= k]) > len(questions) / 2:
        yield _selection(k, enough)
        k *= 2


def _selection(k: int, questions: Sequence[Scored]) -> Selection:
    by_votes = [_is_right(own, majority([answer.text for answer, _ in own])) for own in questions]
    weighted = [_is_right(own, elected([a.text for a, _ in own], [score for _, score in own])) for own in questions]
    best = [max(own, key=lambda pair: pair[1])[0].right for own in questions]
    labels = [[answer.right for answer, _ in own] for own in questions]
    shares = (mean([mean(own) for own in labels]), mean(by_votes), mean(weighted), mean(best))
    return Selection(k, len(questions), *shares, mean([any(own) for own in labels]), paired(weighted, by_votes))


def _is_right(own: Scored, text: str) -> bool:
    return next(answer.right for answer, _ in own if answer.text == text)
