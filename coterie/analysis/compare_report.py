"""The report of a comparison: accuracy over the tokens sampled in training and differences as PNG, and a page."""

from __future__ import annotations

import io
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coterie.analysis.compare_table import Interval
from coterie.files import read_rows
from coterie.view.report import write_report

if TYPE_CHECKING:
    from matplotlib.figure import Figure

EPISODES = 8  # shown per arm


def sampled_and_score(run: Path, score: str = "accuracy") -> Iterator[tuple[int, float]]:
    """Each evaluation of a run: the tokens sampled in training until then, and the accuracy, or the mean reward."""
    sampled = 0
    for row in read_rows(run / "metrics.jsonl"):
        sampled += int(row.get("sampled_tokens", 0))
        if f"eval/{score}" in row:
            yield sampled, row[f"eval/{score}"]


def curves(runs: Mapping[str, Sequence[Path]], score: str = "accuracy") -> bytes:
    """The evaluations of every trained arm over its sampled tokens, as PNG: a colour per arm, a line per seed."""
    from matplotlib.figure import Figure  # takes a second

    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    for number, (name, seeds) in enumerate(runs.items()):
        for seed, run in enumerate(seeds):
            points = list(sampled_and_score(run, score))
            label = name if seed == 0 else None
            axes.plot([x for x, _ in points], [y for _, y in points], "o-", color=f"C{number}", label=label)
    axes.set(xlabel="tokens sampled in training", ylabel=f"{score} on held-out tasks")
    if score == "accuracy":
        axes.set_ylim(0, 1)
    axes.grid(alpha=0.3)
    if runs:
        axes.legend()
    return _png(figure)


def forest(differences: Mapping[str, Interval], title: str) -> bytes:
    """Differences with their intervals as PNG: one line each, blue above zero, red below, grey if zero is inside."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 0.8 + 0.4 * max(1, len(differences))), layout="constrained")
    axes = figure.subplots()
    for place, one in enumerate(differences.values()):
        color = "tab:blue" if one.low > 0 else "tab:red" if one.high < 0 else "0.5"
        axes.plot([one.low, one.high], [place, place], "-", color=color, linewidth=2)
        axes.plot(one.center, place, "o", color=color)
    axes.axvline(0, color="black", linewidth=0.8)
    axes.set_yticks(range(len(differences)), list(differences))
    axes.set(xlabel=title, ylim=(len(differences) - 0.5, -0.5))
    axes.grid(axis="x", alpha=0.3)
    return _png(figure)


def _png(figure: Figure) -> bytes:
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=120)
    return file.getvalue()


def summary(title: str, rows: Sequence[Mapping[str, object]], commands: Sequence[Sequence[object]]) -> dict[str, Any]:
    """The results of a comparison for the viewer's page: a table, and the commands that reproduce it."""
    columns = list(dict.fromkeys(key for row in rows for key in row))
    cells = [[str(row.get(column, "")) for column in columns] for row in rows]
    words = "\n".join(shlex.join(["coterie", *map(str, command)]) for command in commands)
    return {"title": title, "table": {"columns": columns, "rows": cells}, "commands": words}


def page(found: Mapping[str, Any], runs: Mapping[str, Path]) -> str:
    """One self-contained HTML page: the table, the arms' curves and some of their episodes, the commands."""
    return write_report(list(runs.values()), EPISODES, redact=False, extra=found)
