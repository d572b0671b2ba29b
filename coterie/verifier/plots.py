"""The reliability plot of a verifier, as PNG."""

from __future__ import annotations

import io
from collections.abc import Sequence

from matplotlib.figure import Figure

from coterie.verifier.metrics import BINS, reliability


def reliability_plot(scores: Sequence[float], labels: Sequence[bool], title: str) -> bytes:
    """The share of right answers over the score, and how many answers have which score."""
    figure = Figure(figsize=(5, 6), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
    found = reliability(scores, labels)
    above.plot([0, 1], [0, 1], "--", color="gray", label="calibrated")
    above.plot([one.score for one in found], [one.right for one in found], "o-", label="verifier")
    above.set(title=title, ylabel="share right", xlim=(0, 1), ylim=(0, 1))
    above.legend(loc="upper left")
    kinds = [[s for s, right in zip(scores, labels, strict=True) if right is kind] for kind in (True, False)]
    below.hist(kinds, bins=BINS, range=(0, 1), stacked=True, label=["right", "wrong"], color=["#16794c", "#b3261e"])
    below.set(xlabel="score", ylabel="answers")
    below.legend()
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=120)
    return file.getvalue()
