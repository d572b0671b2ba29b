"""Generated tasks of reasoning-gym as dataset rows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from coterie.data.prepare import SPLITS, SourceRow
from coterie.data.row import Raw, Row, Source

PREFIX = "reasoning_gym:"


def source(name: str) -> Source:
    """`reasoning_gym:chain_sum` as a source."""
    return Source(name, "generated tasks of reasoning-gym", "native", parse)


def parse(raw: Raw, name: str) -> Row | str:
    return Row(raw["id"], raw["question"], raw["answer"], raw["meta"])


def generated(name: str, place: Path | None, limit: int | None) -> Iterator[SourceRow]:
    """1,000 training and 200 test tasks, or fewer with a limit; the same on every machine."""
    from coterie.envs.reasoning_gym import ReasoningGym  # imports torch, which the other sources do not need

    if place is not None:
        raise ValueError(f"{name}: is generated; --source has no effect")
    env = ReasoningGym(name.removeprefix(PREFIX), size=limit or 1000, test_size=limit or 200)
    for split in SPLITS:
        for number, task in enumerate(env.tasks(split), 1):
            raw: dict[str, Any] = {"id": task.id, "question": task.prompt, "answer": task.answer, "meta": task.meta}
            yield SourceRow(split, number, raw, split)
