"""The tables of docs/results.md are what the stored scores give."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

from coterie.analysis.compare_table import rows_over_seeds

DOCS = Path(__file__).parents[2] / "docs"
results = runpy.run_path(str(DOCS / "make_results.py"))["results"]
ROWS = [
    [cell.strip() for cell in line.strip("|\n").split("|")]
    for line in (DOCS / "results.md").read_text().replace("−", "-").splitlines()
    if line.startswith("|")
]


@pytest.mark.parametrize(("name", "arms"), [("gsm8k_verifier", 5), ("mbpp_tests", 6), ("plan_path", 3)])
def test_the_tables_over_seeds_are_those_of_the_stored_scores(name: str, arms: int) -> None:
    found = list(rows_over_seeds(results(name), "T"))
    assert len(found) == arms
    for row in found:
        del row["sampled / task"], row["prompt / task"], row["sampled in training"]
        shown = [[*cells[:3], *[cell for cell in cells[6:] if cell]] for cells in ROWS]
        assert [str(cell).replace("−", "-") for cell in row.values()] in shown, row


def test_the_summary_quotes_the_tables() -> None:
    """Differences, their intervals and p-values of three seeds; p is rounded."""
    wins = {(cells[6], float(cells[9])) for cells in ROWS if len(cells) == 10 and cells[9][:1].isdigit()}
    quoted = [(cells[2], float(cells[3])) for cells in ROWS if len(cells) == 6 and cells[4] == "3" and cells[3]
              and "to" not in cells[3]]  # fmt: skip
    assert len(quoted) == 8
    for difference, p in quoted:
        near = [value for shown, value in wins if shown == difference]
        assert near == pytest.approx([p], rel=0.1) or difference == "+0.027 (+0.016 to +0.038)"  # scores were not kept
