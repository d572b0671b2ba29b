"""Competition mathematics: DeepScaleR, AIME 2024 and MATH-500, which share one format."""

from __future__ import annotations

from coterie.data.row import Hub, Raw, Row, Source, missing_text, other_fields


def parse(raw: Raw, name: str) -> Row | str:
    """The answer is LaTeX or a number; AIME's may be an integer instead of text."""
    if "answer" in raw and isinstance(raw["answer"], int):
        raw = {**raw, "answer": str(raw["answer"])}
    if problem := missing_text(raw, "problem", "answer"):
        return problem
    others = other_fields(raw, "problem", "answer", "unique_id")
    return Row(str(raw.get("unique_id", name)), raw["problem"], raw["answer"], others)


DEEPSCALER_HUB = Hub("agentica-org/DeepScaleR-Preview-Dataset", None, {"train": "train"})
AIME2024_HUB = Hub("HuggingFaceH4/aime_2024", None, {"train": "test"})
MATH500_HUB = Hub("HuggingFaceH4/MATH-500", None, {"test": "test"})
DEEPSCALER = Source("deepscaler", "competition mathematics: training", "math", parse, (DEEPSCALER_HUB,), unsplit=True)
AIME2024 = Source("aime2024", "30 hard problems: evaluation", "math", parse, (AIME2024_HUB,), split="test")
MATH500 = Source("math500", "500 problems of MATH: evaluation", "math", parse, (MATH500_HUB,), split="test")
