"""Makes the picture at the head of docs/results.md from the stored scores: python docs/make_results.py"""

from __future__ import annotations

import json
from pathlib import Path

from coterie.analysis.compare_report import forest
from coterie.analysis.compare_table import Result, differences

DOCS = Path(__file__).parent
TEAMS = {
    "gsm8k_verifier": "GSM8K, with verifier",
    "mbpp_tests": "MBPP, with tester",
    "plan_path": "Plan-Path, with planner",
}
OTHERS = {
    "S1": "one agent, once",
    "S2": "one conversation",
    "S3": "the same asked again",
    "S3-8": "asked eight times",
    "S4": "one shared adapter",
}


def results(name: str) -> list[dict[str, Result]]:
    """The results of each seed by arm, from docs/results/; tokens are not stored."""
    stored = json.loads((DOCS / "results" / f"{name}.json").read_text())
    unknown = {"tokens": 0.0, "prompt_tokens": 0.0}
    return [
        {
            arm: Result({str(number): float(solved) for number, solved in enumerate(scores)}, unknown, 0)
            for arm, scores in stored[f"seed {seed}"].items()
        }
        for seed in range(3)
    ]


if __name__ == "__main__":
    found = {
        f"{team} − {OTHERS[arm]}": interval
        for name, team in TEAMS.items()
        for arm, interval in differences(results(name), "T").items()
    }
    title = "accuracy: team − other"
    (DOCS / "images" / "results.png").write_bytes(forest(found, title))
