"""Evaluates a verifier beside baselines, on questions that it was not trained on."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from coterie.errors import UserError
from coterie.verifier.answers import Answer
from coterie.verifier.baselines import baselines
from coterie.verifier.metrics import Measures, measures
from coterie.verifier.model import NAME, Verifier
from coterie.verifier.selection import Selection, selections
from coterie.verifier.train import QUESTIONS, fitting, mixed_questions, sampled_if_mixed


class NothingToMeasure(UserError, ValueError):
    """Answers on which a verifier cannot be measured."""


@dataclass(frozen=True)
class Evaluation:
    """A verifier and its baselines on the same answers."""

    answers: list[Answer]
    scores: list[float]  # of the verifier
    reports: Mapping[str, Measures]  # the verifier, then each baseline
    trained: int  # answers left out because the verifier was trained on their questions
    too_long: int  # answers left out because they are longer than the verifier's context
    perturbed: Measures | None  # the verifier with perturbed answers included, which the reports leave out
    selections: list[Selection]  # accuracy of selections by its scores

    @property
    def verdict(self) -> str:
        """Whether the verifier knows more than the question, and whether choosing by its scores beats the majority."""
        own = self.reports[NAME].accuracy_within
        others = {name: one.accuracy_within for name, one in self.reports.items() if name != NAME} | {"chance": 0.5}
        rival = max(others, key=lambda name: others[name])
        known = f"within {self.reports[NAME].questions} questions the verifier ranks {own:.3f} of the pairs rightly"
        if own > others[rival]:
            return f"{known}, more than every baseline ({rival}: {others[rival]:.3f}){self._choice()}"
        return f"{known}, no better than {rival} ({others[rival]:.3f}){self._choice()}"

    def _choice(self) -> str:
        """Whether the score-weighted vote beats the majority, for the largest k; empty without selections."""
        if not self.selections:
            return ""
        most = self.selections[-1]
        gain = most.difference
        better = gain.p < 0.05 and gain.difference > 0
        advice = "use it to choose" if better else "do not rely on it to choose"
        sums = f"of {most.k} answers the largest sum of scores is right on {most.weighted:.3f}"
        return f"; {sums}, the majority on {most.majority:.3f} (p = {gain.p:.2g}): {advice}"


def evaluate(verifier: Verifier, run: Path, file: Path, answers: Sequence[Answer]) -> Evaluation:
    """Score the answers of a file to questions that the run was not trained on, beside the baselines."""
    trained = set(json.loads((run / QUESTIONS).read_text()))
    fresh = [answer for answer in answers if answer.question not in trained]
    examples = fitting(verifier, fresh)
    left_out, too_long = len(answers) - len(fresh), len(fresh) - len(examples)
    fresh = [one.answer for one in examples]
    if not mixed_questions(fresh):
        known = f"; {left_out} of {len(answers)} answers are to questions that {run} was trained on" if left_out else ""
        long = f"; {too_long} answers are longer than the verifier's context of {verifier.context}" if too_long else ""
        raise NothingToMeasure(f"{file}: no new question has right and wrong answers{known}{long}")
    scores = verifier.score_rows([one.ids for one in examples])
    measured = sampled_if_mixed(fresh)
    own = [
        one for one, answer in zip(scores, fresh, strict=True) if len(measured) == len(fresh) or not answer.perturbed
    ]
    reports = {name: _measures(column, measured) for name, column in {NAME: own, **baselines(measured)}.items()}
    perturbed = _measures(scores, fresh) if len(measured) < len(fresh) else None
    return Evaluation(measured, own, reports, left_out, too_long, perturbed, list(selections(measured, own)))


def _measures(scores: Sequence[float], answers: Sequence[Answer]) -> Measures:
    return measures(scores, [answer.right for answer in answers], [answer.question for answer in answers])
