"""The plot of a balance: how questions were answered, and which answers were kept."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from coterie.files import write_atomic
from coterie.statistics import mean
from coterie.verifier.answers import Answer
from coterie.verifier.balance import Balance

BINS = 11  # centred on 0, 0.1 … 1
COLORS = {"right": "#16794c", "wrong, sampled": "#b3261e", "wrong, perturbed": "#e8a19c"}


def plot_balance(balance: Balance, file: Path) -> None:
    """Write a PNG: questions by the share of right answers, and answers by kind before and after."""
    from matplotlib.figure import Figure  # takes a second

    figure = Figure(figsize=(9, 3.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    _draw_questions(left, balance)
    _draw_answers(right, balance)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=120)
    write_atomic(file, buffer.getvalue())


def right_shares(answers: Sequence[Answer]) -> list[float]:
    """The share of right answers of each question."""
    labels: dict[str, list[float]] = {}
    for answer in answers:
        labels.setdefault(answer.question, []).append(answer.label)
    return [mean(own) for own in labels.values()]


def kinds(answers: Sequence[Answer]) -> dict[str, int]:
    """How many answers there are of each kind."""
    counts = dict.fromkeys(COLORS, 0)
    for answer in answers:
        wrong = "wrong, perturbed" if answer.perturbed else "wrong, sampled"
        counts["right" if answer.right else wrong] += 1
    return counts


def _draw_questions(axes: Any, balance: Balance) -> None:
    for answers, color, name in ((balance.read, "#9aa0a6", "read"), (balance.kept, "#1a56c4", "kept")):
        axes.hist(right_shares(answers), bins=BINS, range=(-0.05, 1.05), color=color, alpha=0.7, label=name)
    axes.set(xlabel="share of right answers", ylabel="questions", title="Questions")
    axes.legend(frameon=False)


def _draw_answers(axes: Any, balance: Balance) -> None:
    bars = {"read": balance.read, "sampled": balance.sampled, "kept": balance.kept}
    left = [0] * len(bars)
    for kind, color in COLORS.items():
        counts = [kinds(answers)[kind] for answers in bars.values()]
        axes.barh(list(bars), counts, left=left, color=color, label=kind)
        left = [start + count for start, count in zip(left, counts, strict=True)]
    axes.invert_yaxis()
    axes.set(xlabel="answers", title="Answers")
    axes.legend(frameon=False)
